"""A plugin.build job through the handler, with the real child process."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path

import pytest

from ytk_core.agent.local import run_job_locally
from ytk_core.digests import digest_file
from ytk_core.errors import CandidateError, UserError
from ytk_core.formats.kernel_bundle import render_bundle
from ytk_core.formats.plugin_manifest import read_plugin_manifest
from ytk_core.jobs import JobKind, JobSpec
from ytk_core.signing import load_or_create_key, verify_manifest
from ytk_forge.handler import BuildHandler
from ytk_forge.readiness import problems

from fakes import cuda_bundles
from fakes import kernel_bundles as bundles
from fakes.forge_toolchains import SHIPPED

JETSON = SHIPPED["arm64-sm87-l4t364-cu126-trt103"]


@pytest.fixture
def run(tmp_path, cache_dir, arch, mode):
    async def body(bundle, *, arch_spec=str(arch), params=None, name="source", signing_key=None):
        source = tmp_path / "kernel.py"
        source.write_text(render_bundle(bundle))
        workdir = tmp_path / "work"
        workdir.mkdir()
        lines: list[str] = []
        spec = JobSpec(kind=JobKind.PLUGIN_BUILD, arch_spec=arch_spec, params=params or {})
        outcome = await run_job_locally(
            BuildHandler(cache_dir, signing_key=signing_key),
            spec,
            {name: source},
            workdir,
            sandbox_mode=mode,
            log=lines.append,
        )
        return outcome, "".join(lines)

    return body


async def test_outputs_summary_and_log(run, arch):
    outcome, log = await run(bundles.fold())
    assert set(outcome.outputs) == {"plugin.so", "manifest.json", "build.log"}
    manifest = read_plugin_manifest(outcome.outputs["manifest.json"])
    assert manifest.so_digest == digest_file(outcome.outputs["plugin.so"])
    summary = outcome.result.summary
    assert (summary["namespace"], summary["name"], summary["arch_spec"]) == ("yasp", "Col2im", str(arch))
    assert summary["so_digest"] == manifest.so_digest
    assert "# audit shape: ok" in log


@pytest.mark.skipif(bool(problems(JETSON, declared=True)), reason=" ".join(problems(JETSON, declared=True)))
async def test_a_plugin_without_headers_is_built_only_where_it_was_asked_for_and_is_marked(run, tmp_path):
    arch = str(JETSON.arch_specs()[0])
    with pytest.raises(UserError, match=r"TensorRT 10\.3: no headers") as caught:
        await run(cuda_bundles.fold(), arch_spec=arch)
    assert "ytk embedded build-plugin --declared-abi" in caught.value.hint
    shutil.rmtree(tmp_path / "work")
    outcome, log = await run(cuda_bundles.fold(), arch_spec=arch, params={"declared_abi": True})
    assert outcome.result.summary["target_verified"] is False
    manifest = read_plugin_manifest(outcome.outputs["manifest.json"])
    assert (manifest.ok, manifest.mark) == (True, " (NOT TARGET-VERIFIED)")
    assert "no SDK headers" in log


async def test_the_manifest_is_signed_also_when_the_build_was_cached(run, tmp_path):
    key = load_or_create_key(tmp_path / "key.pem")
    outcome, log = await run(bundles.fold(), signing_key=tmp_path / "key.pem")
    assert "from the cache" in log, "the first test of this file built it without a key"
    manifest = read_plugin_manifest(outcome.outputs["manifest.json"])
    assert verify_manifest(manifest, outcome.outputs["plugin.so"], [key.public]) == key.public
    assert outcome.result.summary["signed_by"] == key.public.key_id


async def test_a_candidates_fault_keeps_its_class_and_code(run):
    with pytest.raises(CandidateError) as caught:
        await run(bundles.with_source(bundles.fold(), "int ytk_launch() { return oops; }"))
    assert caught.value.code == "compile_error"
    assert "SOURCE:1:" in caught.value.message


@pytest.mark.parametrize("arch_spec", ["nonsense", ""])
async def test_bad_arch_spec(run, arch_spec):
    with pytest.raises(UserError) as caught:
        await run(bundles.fold(), arch_spec=arch_spec)
    assert caught.value.code == "bad_arch_spec"


async def test_unknown_parameter(run):
    with pytest.raises(UserError) as caught:
        await run(bundles.fold(), params={"plugin_name": "X"})
    assert caught.value.code == "bad_params"
    assert "plugin_name" in caught.value.message


async def test_missing_input(run):
    with pytest.raises(UserError) as caught:
        await run(bundles.fold(), name="sauce")
    assert caught.value.code == "input_missing"


def processes_that_mention(text: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if text in command:
                found.append(command)
    return found


async def test_cancelling_ends_the_compiler(tmp_path, arch, mode):
    """A compilation that would take minutes is gone at once, in the sandbox too."""
    slow = "".join(
        f"constexpr long g{k}() {{ long s = {k}; for (long i = 0; i < 260000; ++i) s += i % 7; return s; }} static_assert(g{k}() != 1);\n"
        for k in range(3000)
    )
    source = (
        slow + 'extern "C" int ytk_launch(const ytk_context*, const ytk_tensor*, int, ytk_tensor*, int) { return 0; }'
    )
    path = tmp_path / "kernel.py"
    path.write_text(render_bundle(bundles.with_source(bundles.fold(), source)))
    workdir = tmp_path / "work"
    workdir.mkdir()
    compiling = asyncio.Event()

    def log(text: str) -> None:
        if "-c kernel.cpp" in text:
            compiling.set()

    spec = JobSpec(kind=JobKind.PLUGIN_BUILD, arch_spec=str(arch))
    job = asyncio.create_task(
        run_job_locally(BuildHandler(tmp_path / "cache"), spec, {"source": path}, workdir, sandbox_mode=mode, log=log)
    )
    await asyncio.wait_for(compiling.wait(), 60)
    assert processes_that_mention(str(workdir))
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert processes_that_mention(str(workdir)) == []
