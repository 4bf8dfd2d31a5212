"""Choosing a winner; the whole search as a library call and as jobs."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import msgspec
import pytest

from ytk_core.agent.local import run_job_locally
from ytk_core.archspec import host_arch_specs
from ytk_core.errors import CandidateError, FormatError, UserError
from ytk_core.formats.kernel_bundle import read_bundle
from ytk_core.formats.plugin_meta import DeploymentTarget
from ytk_core.jobs import JobKind, JobResult, JobSpec
from ytk_gaia import main as agent
from ytk_gaia import search
from ytk_gaia.evaluator.cuda_device import GpuDevice
from ytk_gaia.evaluator.device_facts import DeviceFacts, KernelFacts
from ytk_gaia.evaluator.verdicts import CandidateResult, PairedRatio, Verdict, write_evaluation
from ytk_gaia.handlers import EvaluateHandler, GenerateHandler
from ytk_gaia.library import generate_and_choose
from ytk_gaia.report import make_report, rank, require_winner

from fakes.judge_limits import BUDGET_S
from fakes.search_results import evaluation, failed, generated, passed

ARCH = str(host_arch_specs("ov20264")[0])
ORIN = "arm64-sm87-dos6010-cu114-trt86"


# ---- pure ------------------------------------------------------------------------------------------------------------


def test_the_best_median_wins_and_a_near_tie_goes_to_the_better_best_time():
    results = [passed("a", 1.0, 0.9), passed("b", 1.01, 0.5), passed("c", 1.5, 0.1), failed("d")]
    assert [r.id for r in rank(results)] == ["b", "a", "c"]
    assert rank([failed("d")]) == []


def test_only_the_last_measurement_decides():
    # In its own batch "a" looked better, but that was another moment.
    first, second, final = (
        evaluation(passed("a", 0.5)),
        evaluation(passed("b", 0.9)),
        evaluation(passed("a", 1.2), passed("b", 1.0)),
    )
    report = make_report(generated("a", "b", "c"), [[first, second], [final]], config={}, arch_spec=ARCH)
    assert report.winner == "b"
    by_id = {c.id: c for c in report.candidates}
    assert by_id["a"].median_ms == 1.2
    assert by_id["c"].verdict is Verdict.NO_EVIDENCE
    assert "next a" in report.why


def test_the_report_says_when_two_kernels_cannot_be_told_apart():
    def ratio(low, high):
        return PairedRatio(to="a", median=1.005, low=low, high=high, pairs=20, confidence=0.95)

    for low, high, words in ((0.99, 1.02, ": a tie"), (1.002, 1.02, "1.002 to 1.020 over 20 pairs")):
        second = msgspec.structs.replace(passed("b", 1.1), ratio=ratio(low, high), cold_ms=2.5)
        report = make_report(generated("a", "b"), [[evaluation(passed("a", 1.0), second)]], config={}, arch_spec=ARCH)
        assert report.winner == "a"
        assert report.why.endswith(words)
        assert {c.id: c.cold_ms for c in report.candidates} == {"a": None, "b": 2.5}


def test_without_a_winner_every_verdict_is_named():
    report = make_report(
        generated("a", "b"), [[evaluation(failed("a"), failed("b", Verdict.TIMEOUT))]], config={}, arch_spec=ARCH
    )
    with pytest.raises(CandidateError) as caught:
        require_winner(report)
    assert caught.value.code == "no_candidate_passed"
    assert "a: WRONG_VALUE (output 0 differs); b: TIMEOUT" in caught.value.message


def test_what_is_right_on_the_emulation_is_ordered_by_static_facts():
    def candidate(name, spills, registers):
        kernel = KernelFacts(
            name="k", registers=registers, stack_bytes=0, shared_bytes=0, spill_bytes=spills, occupancy=0.5
        )
        facts = DeviceFacts(compiler="NVRTC", sm="sm_87", kernels=(kernel,))
        return CandidateResult(id=name, verdict=Verdict.PASSED, device=facts)

    found = [candidate("a", 8, 20), candidate("b", 0, 40), candidate("c", 0, 30), failed("d")]
    assert [r.id for r in rank(found)] == ["c", "b", "a"]
    # Launches and memory traffic on paper come before registers, and after spills.
    assert [r.id for r in rank(found, {"a": 1.0, "b": 5.0, "c": 9.0})] == ["b", "c", "a"]
    judged = msgspec.structs.replace(evaluation(*found), emulated=True)
    report = make_report(generated("a", "b", "c", "d"), [[judged]], config={}, arch_spec=ARCH)
    assert report.winner == "c"
    assert report.why.startswith("not measured")
    assert report.candidates[2].device.kernels[0].registers == 30
    made = generated("a", "b", "c", "d")
    for each, us in zip(made["candidates"], (1.0, 5.0, 9.0, 1.0), strict=True):
        each |= {"launches": 1, "traffic_bytes": 4096, "paper_us": us}
    report = make_report(made, [[judged]], config={}, arch_spec=ARCH)
    assert report.winner == "b"
    assert report.why.endswith("1 launches a call, 4096 B of memory traffic, 5.0 us on paper")
    assert (report.candidates[1].launches, report.candidates[1].paper_us) == (1, 5.0)
    assert report.measurements[0]["emulated"] is True


# ---- the agent's command line ----------------------------------------------------------------------------------------


def settings(mode):
    return SimpleNamespace(
        extra={
            "mode": mode,
            "engines": ("ov20264",),
            "arch_specs": ("arm64-cpu82-linux-glibc235-ort132",),
            "emulate": (ORIN,),
        }
    )


def test_a_generator_says_its_torch_and_an_evaluator_its_device():
    generator, evaluator = agent.describe(settings("generator")), agent.describe(settings("evaluator"))
    assert "torch==2.13.0" in generator.capabilities
    assert any(c.startswith("pt2_schema==") for c in generator.capabilities)
    assert generator.device_uid == ""
    assert evaluator.device_uid
    assert ARCH in evaluator.arch_specs
    assert "arm64-cpu82-linux-glibc235-ort132" in generator.arch_specs
    # A GPU that is not here: the generator writes for it, the evaluator says that it emulates it.
    assert ORIN in generator.arch_specs
    assert ORIN in evaluator.arch_specs
    assert {f"emulated=={ORIN}", "deployment_target==tensorrt"} <= set(evaluator.capabilities)
    assert {type(h) for h in agent.make_handlers(settings("generator"))} == {GenerateHandler}
    assert {type(h) for h in agent.make_handlers(settings("evaluator"))} == {EvaluateHandler}


def test_a_gpu_of_this_machine_is_served_and_not_emulated(monkeypatch):
    orin = GpuDevice(index=0, name="Orin", uuid="ab", sm=87, l2_bytes=1, bandwidth=1.0, driver_cuda=(11, 4))
    monkeypatch.setattr(agent, "_gpus", lambda: [orin])
    other = "arm64-sm87-l4t364-cu126-trt103"
    found = settings("evaluator")
    found.extra["emulate"] = (ORIN, other)
    facts = agent.describe(found)
    assert facts.arch_specs[0] == ORIN
    assert f"emulated=={ORIN}" not in facts.capabilities
    assert f"emulated=={other}" in facts.capabilities  # the driver is too old for it
    assert (facts.device_name, facts.device_uid) == ("Orin", "gpu-ab")


def test_the_agents_parent_process_imports_no_torch():
    code = (
        "import sys, ytk_gaia.main as m, ytk_gaia.handlers, ytk_gaia.library, ytk_gaia.tasks;"
        "from types import SimpleNamespace as S;"
        "m.describe(S(extra={'mode': 'generator', 'engines': ('ov20264',), 'arch_specs': (), 'emulate': ()}));"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- end to end ------------------------------------------------------------------------------------------------------


def save_region(path, module, args):
    import torch

    torch.export.save(torch.export.export(module.eval(), args), path)


@pytest.fixture(scope="module")
def fold(tmp_path_factory):
    import torch

    path = tmp_path_factory.mktemp("region") / "Fold.pt2"
    save_region(path, torch.nn.Fold((40, 40), 3, padding=1), (torch.randn(1, 8 * 9, 1600),))
    return path


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::FutureWarning")
async def test_fold_through_the_job_handlers(fold, tmp_path):
    spec = JobSpec(
        kind=JobKind.KERNEL_GENERATE,
        arch_spec=ARCH,
        params={"config": {"deployment_target": "cpu", "candidates": 4, "threads": 1, "budget": BUDGET_S}},
    )
    log = []
    outcome = await run_job_locally(
        GenerateHandler(), spec, {"region.pt2": fold}, tmp_path,
        children=[EvaluateHandler("here")], sandbox_mode="required", log=log.append,
    )  # fmt: skip
    report = json.loads(outcome.outputs["report.json"].read_bytes())
    bundle = read_bundle(outcome.outputs["bundle.py"])
    assert report["winner"] == outcome.result.summary["winner"]
    # Both forms were measured; which one won is the machine's business.
    measured = [c for c in report["candidates"] if c["processes"]]
    assert len(measured) == 4
    assert {c["parameters"]["plan"] for c in measured} == {"base", "gather"}
    # Far behind the best, a candidate gets no second process.
    passed_ones = [c for c in measured if not c["reason"].startswith("not measured further")]
    assert all(c["verdict"] == "PASSED" and c["median_ms"] > 0 for c in passed_ones)
    left = [c for c in report["candidates"] if not c["processes"]]
    assert left
    assert all(c["verdict"] == "NO_EVIDENCE" and "likelier to be fast" in c["reason"] for c in left)
    assert report["measurements"][0]["conditions"]["device_uid"] == "here"
    assert report["measurements"][0]["sandbox"] == "bubblewrap"
    assert bundle.meta.deployment_target is DeploymentTarget.CPU
    assert [i.dims for i in bundle.meta.inputs] == [[1, 72, 1600]]
    assert bundle.meta.outputs[0].shape == ["1", "8", "40", "40"]
    assert bundle.meta.generator.torch.startswith("2.13.0")
    assert any(line.startswith("winner: ") for line in log)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_volume_sampler_through_the_library(tmp_path):
    import torch

    class Lifter(torch.nn.Module):
        def forward(self, volume, grid):
            return torch.nn.functional.grid_sample(volume, grid, align_corners=False)

    region = tmp_path / "GridSampler.pt2"
    save_region(region, Lifter(), (torch.randn(1, 4, 6, 8, 10), torch.rand(1, 8, 8, 4, 3) * 2 - 1))
    out, report_path = tmp_path / "GridSampler.module_source.py", tmp_path / "report.json"
    config = {"deployment_target": "cpu", "candidates": "2", "strategies": "loops", "budget": BUDGET_S}
    report = generate_and_choose(region, config, out, report_path, sandbox="required", log=lambda _text: None)
    assert report.winner == json.loads(report_path.read_bytes())["winner"]
    meta = read_bundle(out).meta
    assert (meta.plugin_namespace, meta.plugin_name, meta.plugin_version) == ("yasp", "GridSampler", "1")
    assert len(meta.inputs) == 2
    assert report.candidates[0].worst_error <= 1


class _AllWrong:
    """An evaluator of which every candidate is wrong."""

    kinds = frozenset({JobKind.KERNEL_EVALUATE})

    async def run(self, ctx):
        files = await ctx.fetch_all("candidates/")
        ids = [name.removeprefix("candidates/").removesuffix(".py") for name in files]
        write_evaluation(ctx.workdir / "evaluation.json", evaluation(*(failed(i) for i in ids)))
        return JobResult(outputs=await ctx.publish({"evaluation.json": ctx.workdir / "evaluation.json"}))


class _Sick:
    """An evaluator that has a broken board."""

    kinds = frozenset({JobKind.KERNEL_EVALUATE})

    async def run(self, ctx):
        from ytk_core.errors import BoardError

        raise BoardError("no compiler", code="worker_sick")


@pytest.mark.torch
async def test_a_search_without_a_winner_fails_as_the_candidates(fold, tmp_path, monkeypatch):
    spec = JobSpec(kind=JobKind.KERNEL_GENERATE, arch_spec=ARCH, params={"config": {"deployment_target": "cpu"}})
    made = generated("loops-a", "loops-b")

    async def generate(self, ref, task, **_options):
        assert ref == search.GENERATE_TASK
        assert task["config"]["deployment_target"] == "cpu"
        (self.workdir / "out" / "candidates").mkdir(parents=True)
        for name in ("task.json", "task.npz", "candidates/loops-a.py", "candidates/loops-b.py"):
            (self.workdir / "out" / name).write_text(name)
        return made

    from ytk_core.agent.local import LocalJobContext

    monkeypatch.setattr(LocalJobContext, "run_task", generate)
    with pytest.raises(CandidateError, match="loops-a: WRONG_VALUE"):
        await run_job_locally(
            GenerateHandler(), spec, {"region.pt2": fold}, tmp_path, children=[_AllWrong()], log=lambda _t: None
        )
    from ytk_core.errors import BoardError

    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(BoardError, match="no compiler"):
        await run_job_locally(
            GenerateHandler(), spec, {"region.pt2": fold}, other, children=[_Sick()], log=lambda _t: None
        )


async def test_a_cpu_kernel_for_a_gpu_is_refused_at_once(tmp_path):
    region = tmp_path / "x.pt2"
    region.write_bytes(b"")
    spec = JobSpec(
        kind=JobKind.KERNEL_GENERATE,
        arch_spec="arm64-sm87-dos6010-cu114-trt86",
        params={"config": {"deployment_target": "cpu"}},
    )
    with pytest.raises(UserError, match="deployment_target=cpu does not go with"):
        await run_job_locally(GenerateHandler(), spec, {"region.pt2": region}, tmp_path)
    bad = msgspec.structs.replace(spec, params={"config": 5})
    with pytest.raises(UserError, match="bad parameters"):
        await run_job_locally(GenerateHandler(), bad, {"region.pt2": region}, tmp_path)


@pytest.mark.torch
def test_a_hostile_region_runs_nothing_outside_its_sandbox(fold, tmp_path):
    """torch.export.load unpickles what it finds; here that would leave a file."""
    import torch

    target = tmp_path / "escaped"

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {target}",)

    content = io.BytesIO()
    torch.save(Evil(), content)
    hostile = tmp_path / "Evil.pt2"
    with zipfile.ZipFile(fold) as source, zipfile.ZipFile(hostile, "w", zipfile.ZIP_STORED) as out:
        assert any("sample_inputs" in name for name in source.namelist())
        for name in source.namelist():
            out.writestr(name, content.getvalue() if "sample_inputs" in name else source.read(name))
    with pytest.raises((FormatError, UserError)):
        generate_and_choose(
            hostile,
            {"deployment_target": "cpu"},
            tmp_path / "o.py",
            tmp_path / "r.json",
            sandbox="required",
            log=lambda _t: None,
        )
    assert not target.exists()
    assert not (tmp_path / "o.py").exists()


def test_a_missing_region_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.pt2"):
        generate_and_choose(tmp_path / "nowhere.pt2", {"deployment_target": "cpu"}, tmp_path / "o.py")
