"""Small but real files of every format that the client reads, for its tests."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ytk_core.archspec import ArchSpec
from ytk_core.digests import digest_bytes, digest_file
from ytk_core.dtypes import DType
from ytk_core.formats.benchmark import BenchmarkRow
from ytk_core.formats.engine_bundle import EngineManifest, PluginEntry, write_engine_bundle
from ytk_core.formats.kernel_bundle import KernelBundle, bundle_digest, render_bundle
from ytk_core.formats.plugin_manifest import SUFFIX, CheckResult, make_manifest, write_plugin_manifest
from ytk_core.formats.reference import Reference, Sample, TensorInfo, write_reference
from ytk_core.formats.region import EXTRA_FILE, RegionSpec, RegionTensor, encode_region_spec
from ytk_core.formats.verify_report import OutputAccuracy, PluginUse, VerifyReport
from ytk_core.formats.weights_npz import write_weights

from fakes import kernel_bundles

ARCH = "amd64-cpuv3-linux-glibc236-ov20264"
BLOCKS = (1, 36, 64)
IMAGE = (1, 4, 8, 8)


def kernel(**changes: Any) -> KernelBundle:
    """The hand-written Fold kernel, its meta changed."""
    bundle = kernel_bundles.fold()
    return msgspec.structs.replace(
        bundle, meta=msgspec.structs.replace(bundle.meta, **({"plugin_name": "Fold"} | changes))
    )


def kernel_text(**changes: Any) -> bytes:
    return render_bundle(kernel(**changes)).encode()


def plugin(
    directory: Path,
    *,
    file_name: str = "Fold.so",
    arch: str = ARCH,
    checks: tuple[CheckResult, ...] = (CheckResult(name="machine", ok=True, found="x86-64", wanted="x86-64"),),
    **changes: Any,
) -> Path:
    """A file that is no library, with a right manifest beside it."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / file_name
    path.write_bytes(b"\x7fELF plugin " + file_name.encode())
    bundle = kernel(**changes)
    manifest = make_manifest(
        arch=ArchSpec.parse(arch),
        so_digest=digest_file(path),
        meta=bundle.meta,
        bundle_digest=bundle_digest(bundle),
        toolchain="test",
        tools={"g++": "12"},
        checks=checks,
    )
    write_plugin_manifest(path.with_name(path.name + SUFFIX), manifest)
    return path


def model(path: Path, *, name: str = "Fold", namespace: str = "yasp", dtype: int = 1, inputs: int = 1) -> Path:
    """An ONNX model of one placeholder node and a Relu."""
    from onnx import TensorProto, helper, save

    node = helper.make_node(
        name,
        [f"x{i}" for i in range(inputs)],
        ["y"],
        name="node_fold",
        domain=namespace,
        plugin_namespace=namespace,
        plugin_version="1",
    )
    relu = helper.make_node("Relu", ["y"], ["z"])
    graph = helper.make_graph(
        [node, relu],
        "g",
        [helper.make_tensor_value_info(f"x{i}", dtype, BLOCKS) for i in range(inputs)],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, IMAGE)],
        value_info=[helper.make_tensor_value_info("y", dtype, IMAGE)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(namespace, 1)]
    save(helper.make_model(graph, opset_imports=opsets), str(path))
    return path


def weights(path: Path) -> Path:
    write_weights(path, {"w": np.zeros((2, 3), np.float32)})
    return path


def row(name: str, ms: float = 1.5) -> BenchmarkRow:
    return BenchmarkRow.from_samples(name, [ms, ms * 1.1, ms * 1.2])


def reference(path: Path) -> Path:
    write_reference(
        path,
        Reference(
            inputs=(TensorInfo(name="x", dtype=DType.FLOAT32, shape=BLOCKS),),
            outputs=(TensorInfo(name="z", dtype=DType.FLOAT32, shape=IMAGE),),
            samples=(Sample(inputs={"x": np.ones(BLOCKS, np.float32)}, outputs={"z": np.ones(IMAGE, np.float32)}),),
            torch_benchmark=row("torch host (cpu)", 3.0),
        ),
    )
    return path


def engine(path: Path, *, arch: str = ARCH) -> Path:
    blob = path.with_suffix(".blob")
    blob.write_bytes(b"engine of " + path.name.encode())
    so = path.with_suffix(".so")
    so.write_bytes(b"plugin")
    manifest = EngineManifest(
        arch_spec=arch,
        engine_name=ArchSpec.parse(arch).engine_name,
        engine_version="2026.4.1",
        precision="fp32",
        onnx_digest=digest_bytes(b"onnx"),
        npz_digest=digest_bytes(b"npz"),
        plugins=(
            PluginEntry(file="plugins/Fold.so", digest=digest_file(so), namespace="yasp", name="Fold", version="1"),
        ),
    )
    write_engine_bundle(path, manifest, {"engine/model.blob": blob, "plugins/Fold.so": so})
    blob.unlink()
    so.unlink()
    return path


def verify_report(*, ok: bool = True, samples: int = 1) -> bytes:
    outputs = [
        OutputAccuracy(
            name="z",
            sample=sample,
            max_abs=1e-7 if ok else 0.5,
            max_rel=1e-6,
            cosine=0.9999999,
            sqnr_db=120.0 - sample,
            ok=ok or sample > 0,
            tolerance="rtol 1e-05, atol 1e-06",
            tolerance_source="float32 default",
            note="" if ok else "too far off",
        )
        for sample in range(samples)
    ]
    return msgspec.json.encode(
        VerifyReport(
            bundle_digest=digest_bytes(b"bundle"),
            arch_spec=ARCH,
            engine_name="openvino",
            engine_version="2026.4.1",
            precision="fp32",
            outputs=tuple(outputs),
            benchmark=row("engine"),
            plugins=(PluginUse(placeholder="yasp::Fold", nodes=1, layers=1),),
        )
    )


def region(path: Path, *, torch_version: str = "2.13.0+cpu") -> Path:
    """A zip with the region spec of a carved Fold, and nothing that torch could load."""
    spec = RegionSpec(
        namespace="yasp",
        name="Fold",
        version="1",
        inputs=(RegionTensor(name="x", dtype=DType.FLOAT32, shape=BLOCKS),),
        outputs=(RegionTensor(name="y", dtype=DType.FLOAT32, shape=IMAGE),),
        aten_ops=("aten.col2im",),
        digest=digest_bytes(b"region"),
        torch_version=torch_version,
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"archive/extra/{EXTRA_FILE}", encode_region_spec(spec))
    return path
