"""Every golden contract renders, compiles with a kernel that does nothing, and passes the audit."""

from __future__ import annotations

from pathlib import Path

import pytest

from ytk_core.abi.ctypes_abi import call_shape, load_table, make_attrs
from ytk_core.formats.kernel_bundle import KernelBundle, translation_unit
from ytk_core.formats.plugin_meta import PluginMeta
from ytk_core.formats.plugin_meta_checks import load_meta
from ytk_forge.audit import CHECKS, audit
from ytk_forge.compile import Units, compile_plugin
from ytk_forge.render import render_table

GOLDEN = sorted((Path(__file__).parents[2] / "golden" / "plugin_meta").glob("*.yaml"))


def trivial_kernel(meta: PluginMeta) -> str:
    text = f'extern "C" int {meta.launcher.launch}(const ytk_context*, const ytk_tensor*, int, ytk_tensor*, int) {{ return YTK_OK; }}\n'
    if meta.launcher.workspace is not None:
        text += f'extern "C" int64_t {meta.launcher.workspace}(const ytk_context*, const ytk_tensor*, int, const ytk_tensor*, int) {{ return 64; }}\n'
    return text


@pytest.fixture(scope="module")
def built(tmp_path_factory, arch, toolchain, compiler, mode):
    """Compile a golden contract, also one for another target: the table is the same for every engine."""

    def run(path: Path) -> tuple[PluginMeta, Path]:
        meta = load_meta(path.read_text(), str(path))
        bundle = KernelBundle(header="", source=trivial_kernel(meta), meta=meta)
        library = compile_plugin(
            Units(kernel=translation_unit(bundle), table=render_table(meta)),
            toolchain=toolchain,
            compiler=compiler,
            arch=arch,
            extra_flags=meta.compile_flags,
            workdir=tmp_path_factory.mktemp(path.stem),
            mode=mode,
            log=lambda _: None,
        ).library
        return meta, library

    return run


def test_there_are_golden_contracts_of_every_kind():
    text = "".join(path.read_text() for path in GOLDEN)
    for word in ("parameter", "int64", "float16", "kHWC8", "extents", "workspace", "attributes"):
        assert word in text


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_renders_compiles_and_passes(path, built, arch, toolchain, compiler, mode):
    meta, library = built(path)
    results = audit(library, meta=meta, arch=arch, toolchain=toolchain, compiler=compiler, mode=mode)
    assert [result for result in results if not result.ok] == []
    assert tuple(result.name for result in results) == CHECKS
    table = load_table(library)
    assert (table.nin, table.nout, table.variant_count) == (len(meta.inputs), len(meta.outputs), len(meta.variants))


@pytest.mark.parametrize(
    ("stem", "dims", "want"),
    [
        ("topk-two-outputs", [[2, 40], []], [[2, 40], [2, 40]]),
        ("topk-two-outputs", [[2, 4000], []], [[2, 100], [2, 100]]),
        ("topk-two-outputs", [[-1, 4000], []], [[-1, 100], [-1, 100]]),
        ("depthwise-f32-f16-khwc8", [[2, 256, 57, 9], [256, 1, 3, 3]], [[2, 256, 29, 5]]),
    ],
)
def test_shapes_of_golden_contracts(stem, dims, want, built):
    meta, library = built(next(path for path in GOLDEN if path.stem == stem))
    table = load_table(library)
    for variant in range(len(meta.variants)):
        assert call_shape(table, variant, dims, make_attrs({})) == (0, want)
