from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ytk_core.agent.attempt import remove_tree
from ytk_core.agent.files import check_output
from ytk_core.agent.handler import JobContext, JobHandler, blob_path
from ytk_core.agent.local import LocalJobContext, run_job_locally
from ytk_core.errors import CandidateError, ToolkitError, UserError
from ytk_core.jobs import JobKind, JobResult, JobSpec, JobState

from fakes.handlers import Handler, child


@pytest.mark.parametrize("name", ["a", "plugins/a.so", "candidates/1.py", ".hidden", "a..b"])
def test_good_blob_names(tmp_path: Path, name: str) -> None:
    assert blob_path(tmp_path, name) == tmp_path / name


@pytest.mark.parametrize("name", ["", "/a", "..", "a/../b", "a//b", "./a", "a/", "a\\b", "a\0b", "."])
def test_bad_blob_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError) as caught:
        blob_path(tmp_path, name)
    assert caught.value.code == "bad_blob_name"


def test_outputs_are_plain_files_of_the_workdir(tmp_path: Path) -> None:
    workdir, outside = tmp_path / "work", tmp_path / "outside"
    workdir.mkdir()
    outside.mkdir()
    secret = outside / "secret"
    secret.write_text("s")
    (workdir / "fine").write_text("x")
    (workdir / "alias").symlink_to(workdir / "fine")
    (workdir / "link").symlink_to(secret)
    (workdir / "up").symlink_to(outside)
    os.mkfifo(workdir / "fifo")
    check_output(workdir / "fine", workdir)
    check_output(workdir / "alias", workdir)
    check_output(secret, workdir)  # the handler's own choice
    for name in ("link", "up/secret", "fifo", "."):
        with pytest.raises(CandidateError):
            check_output(workdir / name, workdir)
    with pytest.raises(ToolkitError):
        check_output(workdir / "missing", workdir)


def test_a_tree_without_permissions_is_removed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("x")
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "file").write_text("x")
    (tree / "a" / "link").symlink_to(outside)
    mode = outside.stat().st_mode
    (tree / "a" / "b").chmod(0)
    (tree / "a").chmod(0o500)
    remove_tree(tree)
    assert not tree.exists()
    assert (outside / "keep").exists()
    assert outside.stat().st_mode == mode
    remove_tree(tree)  # gone already


async def parent(ctx: Any) -> JobResult:
    source = await ctx.fetch("source")
    told = await child(ctx, "echo", {"n": 1})
    ctx.progress(0.5, "half")
    bad = await ctx.submit_child(JobSpec(kind=JobKind.KERNEL_EVALUATE, params={"fail": True}), {})
    good = await ctx.submit_child(JobSpec(kind=JobKind.KERNEL_EVALUATE), {"task": source})
    views = [await ctx.wait_job(job_id) for job_id in (bad, good)]
    assert views[0].state is JobState.FAILED
    assert views[0].failure.code == "invalid_input"
    fetched = await ctx.fetch_blob(views[1].result.outputs[0])
    out = ctx.workdir / "out"
    out.write_text(source.read_text() + fetched.read_text())
    return JobResult(outputs=await ctx.publish({"out": out}), summary={"n": told["task"]["n"]})


async def evaluate(ctx: Any) -> JobResult:
    if ctx.spec.params.get("fail"):
        raise UserError("told to fail")
    out = ctx.workdir / "evaluation"
    out.write_text((await ctx.fetch("task")).read_text().upper())
    return JobResult(outputs=await ctx.publish({"evaluation": out}))


async def test_a_job_runs_locally_with_its_children(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text("abc")
    workdir = tmp_path / "work"
    workdir.mkdir()
    lines: list[str] = []
    outcome = await run_job_locally(
        Handler(parent, JobKind.KERNEL_GENERATE),
        JobSpec(kind=JobKind.KERNEL_GENERATE),
        {"source": source},
        workdir,
        children=[Handler(evaluate, JobKind.KERNEL_EVALUATE)],
        log=lines.append,
    )
    assert outcome.outputs["out"].read_text() == "abcABC"
    assert outcome.result.summary == {"n": 1}
    assert "hello from the child\n" in "".join(lines)


async def test_a_child_that_nobody_takes(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        await run_job_locally(
            Handler(parent, JobKind.KERNEL_GENERATE),
            JobSpec(kind=JobKind.KERNEL_GENERATE),
            {"source": Path(__file__)},
            tmp_path,
            log=lambda _text: None,
        )
    assert caught.value.code == "unsatisfiable"


def test_the_contexts_are_contexts() -> None:
    """Checked by mypy: both implementations satisfy the protocol."""
    from ytk_core.agent.context import AttemptContext

    def takes(_context: type[JobContext], _handler: type[JobHandler]) -> None: ...

    takes(LocalJobContext, Handler)
    takes(AttemptContext, Handler)
