"""Local jobs: children take turns on the device, and what they gave is kept and found again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ytk_core.agent.blobs import BlobContext
from ytk_core.agent.context import AttemptContext
from ytk_core.agent.local import LocalJobContext, run_job_locally
from ytk_core.agent.local_results import LocalResults, result_key
from ytk_core.jobs import JobKind, JobResult, JobSpec

SPEC = JobSpec(kind=JobKind.KERNEL_EVALUATE, params={"n": 1})


def outputs(tmp_path: Path, text: str) -> tuple[JobResult, dict[str, Path]]:
    from ytk_core.agent.files import describe

    path = tmp_path / f"{text}.txt"
    path.write_text(text)
    blob = describe("out", path)
    return JobResult(outputs=(blob,), summary={"text": text}), {blob.digest: path}


def test_a_result_is_found_again_by_what_decides_it(tmp_path: Path) -> None:
    result, paths = outputs(tmp_path, "first")
    store = LocalResults(tmp_path / "kept")
    assert store.find(SPEC) is None
    store.add(SPEC, result, paths)
    again = LocalResults(tmp_path / "kept")
    found = again.find(msgspec.structs.replace(SPEC, wall_limit_s=1.0, priority=5))
    assert found is not None
    assert found[0] == result
    assert [path.read_text() for path in found[1].values()] == ["first"]
    for other in ({"params": {"n": 2}}, {"arch_spec": "x"}, {"requirements": ("a",)}, {"measuring": True}):
        assert again.find(msgspec.structs.replace(SPEC, **other)) is None
        assert result_key(msgspec.structs.replace(SPEC, **other)) != result_key(SPEC)


def test_the_record_only_grows_and_the_first_line_counts(tmp_path: Path) -> None:
    store = LocalResults(tmp_path / "kept")
    for text in ("first", "second"):
        store.add(SPEC, *outputs(tmp_path, text))
    lines = (tmp_path / "kept" / "results.jsonl").read_bytes().splitlines()
    assert len(lines) == 2
    found = LocalResults(tmp_path / "kept").find(SPEC)
    assert found is not None
    assert found[0].summary == {"text": "first"}


def test_a_line_cut_off_by_a_kill_and_a_lost_output_are_done_again(tmp_path: Path) -> None:
    record = tmp_path / "kept" / "results.jsonl"
    store = LocalResults(tmp_path / "kept")
    store.add(SPEC, *outputs(tmp_path, "first"))
    whole = record.read_bytes()
    record.write_bytes(whole[: len(whole) // 2])
    cut = LocalResults(tmp_path / "kept")
    assert cut.find(SPEC) is None
    cut.add(SPEC, *outputs(tmp_path, "first"))
    assert LocalResults(tmp_path / "kept").find(SPEC) is not None
    for blob in (tmp_path / "kept" / "blobs").iterdir():
        blob.unlink()
    assert LocalResults(tmp_path / "kept").find(SPEC) is None


class Counting:
    """Counts how often it runs, and how many of it run at once."""

    kinds = frozenset({JobKind.KERNEL_EVALUATE})

    def __init__(self) -> None:
        self.runs = self.at_once = self.most = 0

    async def run(self, ctx: Any) -> JobResult:
        self.runs += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)
        out = ctx.workdir / "n.txt"
        out.write_text(str(ctx.spec.params["n"]))
        self.at_once -= 1
        return JobResult(outputs=await ctx.publish({"n": out}))


class Parent:
    """Submits three measuring children, two of them equal."""

    kinds = frozenset({JobKind.KERNEL_GENERATE})

    async def run(self, ctx: Any) -> JobResult:
        specs = [JobSpec(kind=JobKind.KERNEL_EVALUATE, params={"n": n}, measuring=True) for n in (1, 2, 3)]
        jobs = [await ctx.submit_child(spec, {}) for spec in specs]
        views = [await ctx.wait_job(job) for job in jobs]
        texts = [(await ctx.fetch_blob(view.result.outputs[0])).read_text() for view in views]
        return JobResult(summary={"texts": texts, "cached": [view.from_cache for view in views]})


async def test_measuring_children_take_turns_and_are_done_once(tmp_path: Path) -> None:
    handler, results = Counting(), LocalResults(tmp_path / "kept")
    for number, cached in ((0, False), (1, True)):
        workdir = tmp_path / str(number)
        workdir.mkdir()
        outcome = await run_job_locally(
            Parent(), JobSpec(kind=JobKind.KERNEL_GENERATE), {}, workdir, children=[handler], results=results
        )
        assert outcome.result.summary == {"texts": ["1", "2", "3"], "cached": [cached] * 3}
    assert (handler.runs, handler.most) == (3, 1)


@pytest.mark.parametrize("context", [AttemptContext, LocalJobContext])
def test_files_come_and_go_in_one_form(context: type) -> None:
    """Whoever stores the blobs: what is fetched, checked and refused is decided in one place."""
    assert issubclass(context, BlobContext)
    for name in ("fetch", "fetch_all", "fetch_blob", "publish"):
        assert name not in vars(context)
