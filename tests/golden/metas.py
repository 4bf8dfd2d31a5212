"""The golden plugin_meta set: contracts of different kinds, so that nothing is shaped by one operator alone."""

from __future__ import annotations

from ytk_core.digests import digest_bytes
from ytk_core.dtypes import DType
from ytk_core.formats.plugin_meta import (
    AttributeDecl,
    AttributeType,
    ConstantAxis,
    Constraints,
    DeploymentTarget,
    Extent,
    Format,
    Generator,
    InputDecl,
    Launcher,
    OutputDecl,
    PluginMeta,
    Role,
    TensorType,
    Tolerance,
    Variant,
)

F32, F16, I32, I64 = DType.FLOAT32, DType.FLOAT16, DType.INT32, DType.INT64


def _types(*types: DType | tuple[DType, Format]) -> list[TensorType]:
    return [TensorType(dtype=t[0], format=t[1]) if isinstance(t, tuple) else TensorType(dtype=t) for t in types]


def _generator(strategy: str, **parameters: object) -> Generator:
    return Generator(name="ytk-gaia", version="0.1.0", torch="2.13.0", strategy=strategy, parameters=parameters, seed=7)


def _tolerance(rtol: float = 1e-4, atol: float = 1e-5) -> Tolerance:
    return Tolerance(rtol=rtol, atol=atol, source="16 rounding steps of float32 over 576 sums")


def fold() -> PluginMeta:
    """A dynamic batch: the smallest whole contract."""
    return PluginMeta(
        schema_version=1,
        plugin_namespace="yasp",
        plugin_name="Fold",
        plugin_version="1",
        deployment_target=DeploymentTarget.CPU,
        inputs=[InputDecl(name="columns", rank=3, dims=[None, 576, 3136])],
        outputs=[OutputDecl(name="image", rank=4, shape=["in0.d0", "in0.d1 // 9", "56", "56"])],
        variants=[Variant(id="f32", inputs=_types(F32), outputs=_types(F32))],
        launcher=Launcher(launch="fold_launch"),
        tolerance=_tolerance(),
        generator=_generator("rewrites", form="gather", tile=64),
        region_digest=digest_bytes(b"fold"),
        attributes=[AttributeDecl(name="kernel_size", type=AttributeType.INTS, value=[3, 3])],
        constant_axes=[ConstantAxis(input=0, axis=1, extent=576)],
        extents=[Extent(input=0, axis=0, min=1, opt=4, max=16)],
        compile_flags=["-funroll-loops", "-mprefer-vector-width=512"],
    )


def linear_attention() -> PluginMeta:
    """Seven sites with differing weights: the weights are inputs of the node, so one kernel serves all sites."""
    return PluginMeta(
        schema_version=1,
        plugin_namespace="yasp.model",
        plugin_name="LiteMLAC384",
        plugin_version="2",
        deployment_target=DeploymentTarget.TENSORRT,
        inputs=[
            InputDecl(name="qkv", rank=4, dims=[4, 1152, 34, 60]),
            InputDecl(name="proj_weight", rank=4, dims=[384, 768, 1, 1], role=Role.PARAMETER),
            InputDecl(name="running_mean", rank=1, dims=[384], role=Role.BUFFER),
        ],
        outputs=[OutputDecl(name="out", rank=4, shape=["in0.d0", "in1.d0", "in0.d2", "in0.d3"])],
        variants=[
            Variant(id="f32", inputs=_types(F32, F32, F32), outputs=_types(F32)),
            Variant(id="f16", inputs=_types(F16, F16, F16), outputs=_types(F16)),
        ],
        launcher=Launcher(launch="lite_mla", workspace="lite_mla_workspace"),
        tolerance=_tolerance(1e-2, 1e-3),
        generator=_generator("templates", template="linear_attention", heads=16, d=16, split=[4, 8]),
        region_digest=digest_bytes(b"lite-mla"),
        constraints=Constraints(arch={"device": "sm87"}, alignment_bytes=16, divisible=[(0, 1, 3)]),
        sites=7,
    )


def embedding() -> PluginMeta:
    """An int64 input: TensorRT 8.6 hands it over as int32, so both are offered."""
    return PluginMeta(
        schema_version=1,
        plugin_namespace="yasp",
        plugin_name="EmbeddingBag",
        plugin_version="1",
        deployment_target=DeploymentTarget.TENSORRT,
        inputs=[
            InputDecl(name="ids", rank=2, dims=[None, None]),
            InputDecl(name="table", rank=2, dims=[30522, 384], role=Role.PARAMETER),
        ],
        outputs=[OutputDecl(name="bags", rank=2, shape=["in0.d0", "in1.d1"])],
        variants=[
            Variant(id="i64", inputs=_types(I64, F32), outputs=_types(F32)),
            Variant(id="i32", inputs=_types(I32, F32), outputs=_types(F32)),
            Variant(id="i32-f16", inputs=_types(I32, F16), outputs=_types(F16)),
        ],
        launcher=Launcher(fixed_workspace_bytes=4096),
        tolerance=_tolerance(),
        generator=_generator("loops"),
        region_digest=digest_bytes(b"embedding"),
        attributes=[
            AttributeDecl(name="mode", type=AttributeType.STRING, value="mean"),
            AttributeDecl(name="padding_idx", type=AttributeType.INTS, required=False),
        ],
        extents=[Extent(input=0, axis=0, min=1, opt=8, max=64), Extent(input=0, axis=1, min=1, opt=16, max=512)],
    )


def topk() -> PluginMeta:
    """Two outputs of different dtypes, and a 0-d input."""
    return PluginMeta(
        schema_version=1,
        plugin_namespace="yasp",
        plugin_name="MaskedTopK",
        plugin_version="1",
        deployment_target=DeploymentTarget.CPU,
        inputs=[InputDecl(name="scores", rank=2, dims=[None, None]), InputDecl(name="bias", rank=0, dims=[])],
        outputs=[
            OutputDecl(name="values", rank=2, shape=["in0.d0", "min(in0.d1, 100)"]),
            OutputDecl(name="indices", rank=2, shape=["in0.d0", "min(in0.d1, 100)"]),
        ],
        variants=[Variant(id="f32", inputs=_types(F32, F32), outputs=_types(F32, I64))],
        launcher=Launcher(),
        tolerance=Tolerance(rtol=0.0, atol=0.0, source="exact: a selection"),
        generator=_generator("templates", template="topk"),
        region_digest=digest_bytes(b"topk"),
        extents=[Extent(input=0, axis=0, min=1, opt=1, max=8), Extent(input=0, axis=1, min=1, opt=1000, max=100000)],
    )


def depthwise() -> PluginMeta:
    """fp32 and fp16 linear, and fp16 kHWC8: whole combinations, not lists per tensor."""
    hwc8 = (F16, Format.HWC8)
    return PluginMeta(
        schema_version=1,
        plugin_namespace="yasp",
        plugin_name="DwConv3x3s2C256",
        plugin_version="1",
        deployment_target=DeploymentTarget.TENSORRT,
        inputs=[
            InputDecl(name="x", rank=4, dims=[None, 256, None, None]),
            InputDecl(name="weight", rank=4, dims=[256, 1, 3, 3], role=Role.CONSTANT),
        ],
        outputs=[
            OutputDecl(name="y", rank=4, shape=["in0.d0", "in0.d1", "ceildiv(in0.d2, 2)", "(in0.d3 - 1) // 2 + 1"])
        ],
        variants=[
            Variant(id="f32-linear", inputs=_types(F32, F32), outputs=_types(F32)),
            Variant(id="f16-linear", inputs=_types(F16, F16), outputs=_types(F16)),
            Variant(id="f16-kHWC8", inputs=_types(hwc8, F16), outputs=_types(hwc8)),
        ],
        launcher=Launcher(launch="dwconv"),
        tolerance=_tolerance(1e-2, 1e-3),
        generator=_generator("templates", template="depthwise", tile=[8, 32]),
        region_digest=digest_bytes(b"depthwise"),
        constant_axes=[ConstantAxis(input=0, axis=1, extent=256)],
        constraints=Constraints(divisible=[(0, 1, 8)]),
        extents=[
            Extent(input=0, axis=0, min=1, opt=4, max=8),
            Extent(input=0, axis=2, min=7, opt=56, max=544),
            Extent(input=0, axis=3, min=7, opt=56, max=960),
        ],
        sites=9,
    )


METAS = {
    "fold-dynamic": fold,
    "linear-attention-sites": linear_attention,
    "embedding-int64": embedding,
    "topk-two-outputs": topk,
    "depthwise-f32-f16-khwc8": depthwise,
}
