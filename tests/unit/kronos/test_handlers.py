from __future__ import annotations

from pathlib import Path

import pytest

from ytk_core.agent.local import run_job_locally
from ytk_core.errors import UserError
from ytk_core.jobs import JobKind, JobSpec
from ytk_kronos.handlers import BuildHandler, VerifyHandler


async def run_build(tmp_path: Path, files: list[str], **params: object) -> None:
    paths = {}
    for index, name in enumerate(files):
        paths[name] = tmp_path / f"file{index}"
        paths[name].write_bytes(name.encode())
    workdir = tmp_path / "work"
    workdir.mkdir()
    spec = JobSpec(kind=JobKind.ENGINE_BUILD, arch_spec="amd64-cpuv2-linux-glibc236-ov20264", params=params)
    await run_job_locally(BuildHandler(tmp_path / "hosts"), spec, paths, workdir, log=print)


async def test_a_library_needs_its_manifest(tmp_path):
    with pytest.raises(UserError, match=r"plugins/A\.so came without A\.so\.manifest\.json") as caught:
        await run_build(tmp_path, ["model.onnx", "plugins/A.so", "plugins/B.so", "plugins/B.so.manifest.json"])
    assert caught.value.code == "no_manifest"


async def test_a_manifest_needs_its_library(tmp_path):
    with pytest.raises(UserError, match=r"plugins/A\.so\.manifest\.json came without its library"):
        await run_build(tmp_path, ["model.onnx", "plugins/A.so.manifest.json"])


async def test_a_model_is_needed(tmp_path):
    with pytest.raises(UserError, match=r"model\.onnx") as caught:
        await run_build(tmp_path, [])
    assert caught.value.code == "input_missing"


@pytest.mark.parametrize("params", [{"iterations": "many"}, {"itterations": 5}])
async def test_unknown_or_wrong_parameters_are_named(tmp_path, params):
    with pytest.raises(UserError, match=f"engine.build: .*{next(iter(params))}") as caught:
        await run_build(tmp_path, ["model.onnx"], **params)
    assert caught.value.code == "bad_params"
    assert "precision" in caught.value.hint


@pytest.mark.parametrize("threads", [-1, 10_000])
async def test_threads_that_the_worker_has_not_are_refused(tmp_path, threads):
    with pytest.raises(UserError, match=rf"threads is {threads}, this worker has \d+ CPUs") as caught:
        await run_build(tmp_path, ["model.onnx"], threads=threads)
    assert caught.value.code == "threads"


async def test_a_file_that_is_no_bundle_is_refused(tmp_path):
    paths = {name: tmp_path / name for name in ("engine.tgz", "reference.npz")}
    for path in paths.values():
        path.write_bytes(b"something else")
    (tmp_path / "work").mkdir()
    spec = JobSpec(kind=JobKind.ENGINE_VERIFY)
    with pytest.raises(UserError, match="not an engine bundle") as caught:
        await run_job_locally(VerifyHandler(tmp_path / "hosts"), spec, paths, tmp_path / "work", log=print)
    assert caught.value.code == "bad_engine_bundle"
