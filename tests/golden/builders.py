"""The golden files: every format once, built from values. ``python tests/golden/builders.py`` writes them anew.

A changed golden file is a changed format: then the schema version changes too, or the change is one that old readers accept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from golden import metas

from ytk_core.archspec import ArchSpec
from ytk_core.conditions import Conditions, Snapshot
from ytk_core.digests import digest_bytes, digest_file
from ytk_core.dtypes import DType, float32_to_bfloat16
from ytk_core.errors import FailureClass
from ytk_core.formats import codec
from ytk_core.formats.benchmark import BenchmarkRow, LayerTime
from ytk_core.formats.engine_bundle import EngineManifest, PluginEntry, write_engine_bundle
from ytk_core.formats.kernel_bundle import KernelBundle, bundle_digest, render_bundle
from ytk_core.formats.plugin_manifest import CheckResult, make_manifest, write_plugin_manifest
from ytk_core.formats.plugin_meta import ConstantAxis, Role
from ytk_core.formats.plugin_meta_checks import dump_meta
from ytk_core.formats.prepare_outputs import (
    CallSite,
    Candidate,
    CandidateReason,
    FxNode,
    NodeInput,
    PluginRow,
    TensorShape,
    write_candidates,
    write_fx_nodes,
    write_plugins,
)
from ytk_core.formats.reference import Reference, Sample, TensorInfo, write_reference
from ytk_core.formats.region import RegionSpec, RegionTensor, encode_region_spec, region_digest
from ytk_core.formats.verify_report import OutputAccuracy, PluginUse, VerifyReport, write_verify_report
from ytk_core.formats.weights_npz import write_weights
from ytk_core.jobs import Failure, JobKind, JobResult, JobSpec, NamedBlob

HERE = Path(__file__).parent
ARCH = ArchSpec.parse("amd64-cpuv3-linux-glibc236-ov20264")
ROW = BenchmarkRow.from_samples("torch host (cpu)", [11.0, 10.0, 12.5, 10.5])

SOURCE = """
extern "C" int fold_launch(const ytk_context* ctx, const ytk_tensor* in, int nin, ytk_tensor* out, int nout) {
  if (nin != 1 || nout != 1) return YTK_BAD_ARITY;
  const char* quotes = "\\"quoted\\", a backslash \\\\ and '''three'''";
  return quotes[0] == '"' && ctx->threads > 0 && fold::gather(in[0], out[0]) ? YTK_OK : YTK_BAD_SHAPE;
}
"""
HEADER = """\
// Fold as a gather: every output pixel sums the columns that cover it.
namespace fold {
inline bool gather(const ytk_tensor& columns, ytk_tensor& image) { return columns.rank == 3 && image.rank == 4; }
}  // namespace fold
"""


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    return {
        "stem.weight": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "stem.bias": np.zeros(4, np.float16),
        "head/scale": np.float64(0.125).reshape(()),
        "bf16": float32_to_bfloat16(np.float32([[1.0, -2.5], [3.25, np.inf]])),
        "empty": np.zeros((0, 7), np.int64),
        "mask": np.array([True, False, True]),
        "codes": np.arange(-4, 4, dtype=np.int8),
    }


def kernel_bundle() -> KernelBundle:
    return KernelBundle(header=HEADER, source=SOURCE, meta=metas.fold())


def conditions() -> Conditions:
    before = Snapshot(
        load_1m=0.25, cpus=2, cpu_mhz=2600.0, temperature_c=51.5, throttle_count=0, governor="performance"
    )
    after = Snapshot(load_1m=1.5, cpus=2, cpu_mhz=2590.0, temperature_c=55.0, throttle_count=0, governor="performance")
    return Conditions(
        before=before,
        after=after,
        iterations=50,
        warmup=10,
        threads=2,
        engine="openvino 2026.4.1",
        worker_id="kronos-1",
        device_uid="cpu-0123",
        pinned=True,
    )


def engine_manifest() -> EngineManifest:
    return EngineManifest(
        arch_spec=str(ARCH),
        engine_name="openvino",
        engine_version="2026.4.1",
        precision="fp32",
        onnx_digest=digest_bytes(b"model.onnx"),
        npz_digest=digest_bytes(b"model.npz"),
        plugins=(
            PluginEntry(
                file="plugins/Fold.so", digest=digest_bytes(b"\x7fELF fold"), namespace="yasp", name="Fold", version="1"
            ),
        ),
        flags={"INFERENCE_PRECISION_HINT": "f32", "threads": 2},
        conditions=conditions(),
        device_uid="cpu-0123",
    )


def write_bundle(path: Path) -> EngineManifest:
    parts = path.parent / f".{path.name}.parts"
    parts.mkdir()
    layers = [LayerTime(name="fold", type="YtkPlugin", ms=0.25, onnx_nodes=("/head/fold",), exec_type="ref_f32")]
    contents = {
        "engine/model.blob": b"\x00engine" * 100,
        "plugins/Fold.so": b"\x7fELF fold",
        "profile.json": codec.encode({"schema_version": 1, "layers": layers}),
        "layers.json": codec.encode([]),
        "benchmark.json": codec.encode(ROW),
        "build.log": b"compiled\n",
    }
    files = {}
    for index, (name, content) in enumerate(contents.items()):
        files[name] = parts / str(index)
        files[name].write_bytes(content)
    manifest = write_engine_bundle(path, engine_manifest(), files)
    for file in (*parts.iterdir(),):
        file.unlink()
    parts.rmdir()
    return manifest


def reference() -> Reference:
    rng = np.random.default_rng(5)

    def sample(batch: int) -> Sample:
        return Sample(
            inputs={
                "image": rng.standard_normal((batch, 3, 4)).astype(np.float32),
                "ids": np.arange(batch, dtype=np.int64),
            },
            outputs={
                "logits": float32_to_bfloat16(rng.standard_normal((batch, 2)).astype(np.float32)),
                "count": np.int64(batch).reshape(()),
            },
        )

    return Reference(
        inputs=(
            TensorInfo(name="image", dtype=DType.FLOAT32, shape=(None, 3, 4)),
            TensorInfo(name="ids", dtype=DType.INT64, shape=(None,)),
        ),
        outputs=(
            TensorInfo(name="logits", dtype=DType.BFLOAT16, shape=(None, 2)),
            TensorInfo(name="count", dtype=DType.INT64, shape=()),
        ),
        samples=(sample(1), sample(3)),
        torch_benchmark=ROW,
        info={"torch": "2.13.0", "model": "model.py", "device": "cpu"},
    )


def region() -> RegionSpec:
    inputs = (
        RegionTensor(name="columns", dtype=DType.FLOAT32, shape=(1, 576, 3136), dynamic_axes=(0,)),
        RegionTensor(name="weight", dtype=DType.FLOAT32, shape=(64,), role=Role.PARAMETER),
    )
    outputs = (RegionTensor(name="image", dtype=DType.FLOAT32, shape=(1, 64, 56, 56), dynamic_axes=(0,)),)
    ops = ("%0 = aten.col2im(in0, [56, 56], [3, 3], [1, 1], [1, 1], [1, 1])", "%1 = aten.mul(%0, in1)")
    return RegionSpec(
        namespace="yasp",
        name="Fold",
        version="1",
        inputs=inputs,
        outputs=outputs,
        aten_ops=("aten::col2im", "aten::mul"),
        digest=region_digest(ops=ops, inputs=inputs, outputs=outputs),
        torch_version="2.13.0",
        module_path="head.fold",
        sites=2,
    )


def plugin_rows() -> list[PluginRow]:
    return [
        PluginRow(
            name="Col2im",
            has_plugin=False,
            placeholder="yasp::Col2im",
            gaia_input="plugin_candidates/Col2im.pt2",
            sites=1,
            namespace="yasp",
            version="1",
        ),
        PluginRow(
            name="SparseConv",
            has_plugin=True,
            placeholder="yasp::SparseConv",
            gaia_input=None,
            sites=12,
            namespace="yasp",
            version="1",
            selector="module:backbone.*",
        ),
    ]


def candidates() -> list[Candidate]:
    f32 = DType.FLOAT32
    site = CallSite(
        node="/head/Fold",
        module_path="head.fold",
        inputs=(TensorShape(dtype=f32, shape=("batch", 576, 3136)),),
        outputs=(TensorShape(dtype=f32, shape=("batch", 64, 56, 56)),),
    )
    volume = CallSite(
        node="/lift/GridSampler",
        module_path="lift",
        inputs=(TensorShape(dtype=f32, shape=(1, 8, 4, 8, 8)), TensorShape(dtype=f32, shape=(1, 4, 4, 4, 3))),
        outputs=(TensorShape(dtype=f32, shape=(1, 8, 4, 4, 4)),),
    )
    return [
        Candidate(
            proposed_op="yasp::Col2im",
            namespace="yasp",
            aten_op="aten::col2im",
            reason=CandidateReason.TARGET_ILLEGAL,
            unsupported_reason="trt86 has no importer for Col2Im",
            rule="missing-op",
            module_path="head.fold",
            module_class="torch.nn.modules.fold.Fold",
            source_line="model.py:17",
            parameters={"output_size": [56, 56], "kernel_size": 3},
            node_inputs=(NodeInput(name="columns", dtype=f32, rank=3),),
            call_site_shapes=(site,),
            constant_axes=(ConstantAxis(input=0, axis=1, extent=576),),
            op_inventory={"aten::col2im": 1},
            region_digest=digest_bytes(b"fold"),
            gaia_input="plugin_candidates/Col2im.pt2",
        ),
        Candidate(
            proposed_op="yasp::GridSampler",
            namespace="yasp",
            aten_op="aten::grid_sampler",
            reason=CandidateReason.RANK,
            unsupported_reason="GridSample: 4-D input and grid only",
            rule="GridSample.rank",
            module_path="lift",
            module_class="model.Lifter",
            source_line="model.py:31",
            node_inputs=(NodeInput(name="volume", dtype=f32, rank=5), NodeInput(name="grid", dtype=f32, rank=5)),
            call_site_shapes=(volume,),
            region_digest=digest_bytes(b"grid"),
            cannot_be_plugin=None,
        ),
        Candidate(
            proposed_op="yasp::NonZero",
            namespace="yasp",
            aten_op="aten::nonzero",
            reason=CandidateReason.DTYPE,
            unsupported_reason="input 0 of NonZero is bool; trt86 accepts float32, float16",
            module_path="",
            module_class="model.Model",
            source_line="model.py:40",
            node_inputs=(NodeInput(name="mask", dtype=DType.BOOL, rank=1),),
            call_site_shapes=(),
            region_digest=digest_bytes(b"nonzero"),
            cannot_be_plugin="data-dependent output shape: a plugin must know its output shape from its inputs' shapes",
        ),
    ]


def fx_nodes() -> list[FxNode]:
    return [
        FxNode(
            name="x",
            op="placeholder",
            target="x",
            outputs=(TensorShape(dtype=DType.FLOAT32, shape=("batch", 576, 3136)),),
        ),
        FxNode(
            name="col2im",
            op="call_function",
            target="aten.col2im.default",
            inputs=("x",),
            outputs=(TensorShape(dtype=DType.FLOAT32, shape=("batch", 64, 56, 56)),),
            module_path="head.fold",
            module_class="torch.nn.modules.fold.Fold",
            source_file="model.py",
            source_line=17,
            region="yasp::Col2im",
            onnx_nodes=("/head/Fold",),
        ),
        FxNode(name="output", op="output", target="output", inputs=("col2im",)),
    ]


def verify_report() -> VerifyReport:
    good = OutputAccuracy(
        name="logits",
        sample=0,
        max_abs=1.5e-6,
        max_rel=2.0e-5,
        cosine=0.9999999,
        sqnr_db=112.5,
        ok=True,
        tolerance="rtol 0.001, atol 1e-05*max|ref|, cosine >= 0.9999",
        tolerance_source="default for fp32",
    )
    bad = OutputAccuracy(
        name="count",
        sample=1,
        max_abs=None,
        max_rel=None,
        cosine=None,
        sqnr_db=None,
        ok=False,
        tolerance="rtol 0, atol 0",
        tolerance_source="exact: integers and booleans",
        note="shape (3,) instead of ()",
    )
    return VerifyReport(
        bundle_digest=digest_bytes(b"bundle"),
        arch_spec=str(ARCH),
        engine_name="openvino",
        engine_version="2026.4.1",
        precision="fp32",
        outputs=(good, bad),
        benchmark=BenchmarkRow.from_samples("model", [1.0, 2.0, 3.0]),
        torch_benchmark=ROW,
        conditions=conditions(),
        plugins=(PluginUse(placeholder="yasp::Fold", nodes=1, layers=1),),
    )


def _plugin_manifest(path: Path) -> None:
    checks = [
        CheckResult(name="machine", ok=True, found="x86-64", wanted="x86-64"),
        CheckResult(
            name="exports", ok=False, found="ytk_plugin, helper", wanted="ytk_plugin", fix="Make helper static."
        ),
    ]
    manifest = make_manifest(
        arch=ARCH,
        so_digest=digest_bytes(b"\x7fELF fold"),
        meta=metas.fold(),
        bundle_digest=bundle_digest(kernel_bundle()),
        toolchain="linux-amd64-gcc",
        tools={"g++": "12.2.0", "ld": "2.40"},
        checks=checks,
    )
    write_plugin_manifest(path, manifest)


def job_spec() -> JobSpec:
    return JobSpec(
        kind=JobKind.ENGINE_BUILD,
        arch_spec=str(ARCH),
        inputs=(NamedBlob(name="model.onnx", digest=digest_bytes(b"model.onnx"), size_bytes=10),),
        params={"precision": "fp32", "iterations": 50},
        requirements=("sandbox",),
        wall_limit_s=900.0,
        measuring=True,
    )


def job_result() -> JobResult:
    blob = NamedBlob(name="engine.tgz", digest=digest_bytes(b"bundle"), size_bytes=6)
    return JobResult(outputs=(blob,), summary={"benchmark": {"mean_ms": 2.0}})


def job_failure() -> Failure:
    return Failure(failure_class=FailureClass.BOARDS, code="disk_full", message="no space left", hint="Free space.")


def _text(text: Callable[[], str]) -> Callable[[Path], object]:
    return lambda path: path.write_text(text(), encoding="utf-8")


GOLDEN: dict[str, Callable[[Path], object]] = {
    **{f"plugin_meta/{name}.yaml": _text(lambda make=make: dump_meta(make())) for name, make in metas.METAS.items()},
    "Fold.module_source.py.txt": _text(lambda: render_bundle(kernel_bundle())),
    "Fold.so.manifest.json": _plugin_manifest,
    "engine.tgz": write_bundle,
    "model.npz": lambda path: write_weights(path, arrays()),
    "model.reference.npz": lambda path: write_reference(path, reference()),
    "ytk_region.json": _text(lambda: encode_region_spec(region())),
    "plugins.json": lambda path: write_plugins(path, plugin_rows()),
    "candidates.json": lambda path: write_candidates(path, candidates()),
    "fx_nodes.json": lambda path: write_fx_nodes(path, fx_nodes()),
    "verify.json": lambda path: write_verify_report(path, verify_report()),
    "job_spec.json": lambda path: codec.write_json(path, job_spec()),
    "job_result.json": lambda path: codec.write_json(path, job_result()),
    "job_failure.json": lambda path: codec.write_json(path, job_failure()),
}


def main() -> None:
    (HERE / "plugin_meta").mkdir(exist_ok=True)
    for name, write in GOLDEN.items():
        write(HERE / name)
        sys.stdout.write(f"{digest_file(HERE / name)}  {name}\n")


if __name__ == "__main__":
    main()
