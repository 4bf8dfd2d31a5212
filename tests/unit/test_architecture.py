"""The dependency direction: proto <- core <- {controller, kronos, gaia, forge, client}, never sideways."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "ytk_proto": ROOT / "protos/ytk_proto",
    "ytk_core": ROOT / "core/ytk_core",
    "ytk_controller": ROOT / "controller/ytk_controller",
    "ytk_kronos": ROOT / "agents/kronos/ytk_kronos",
    "ytk_gaia": ROOT / "agents/gaia/ytk_gaia",
    "ytk_forge": ROOT / "agents/forge/ytk_forge",
    "ytk_client": ROOT / "client/ytk_client",
}
ALLOWED = {
    "ytk_proto": set(),
    "ytk_core": {"ytk_proto"},
    **{
        package: {"ytk_proto", "ytk_core"}
        for package in ("ytk_controller", "ytk_kronos", "ytk_gaia", "ytk_forge", "ytk_client")
    },
}
# Whoever loads these at import time makes every process that touches the module pay for it.
HEAVY = {"torch", "openvino", "onnxruntime", "onnx", "onnxscript", "tensorrt"}
# Packages that must stay free of heavy modules at import time, and of these dependencies altogether.
LIGHT = {
    "ytk_core": {"torch", "sqlalchemy", "alembic", "obstore"},
    "ytk_kronos": {"torch", "sqlalchemy", "alembic", "obstore"},
    "ytk_forge": {"torch", "sqlalchemy", "alembic", "obstore"},
    "ytk_controller": {"torch", "onnx", "openvino"},
}


def imports_of(source: str) -> tuple[set[str], set[str]]:
    """Give the top-level packages imported anywhere, and those imported when the module is."""
    tree = ast.parse(source)
    lazy = {
        id(node)
        for scope in ast.walk(tree)
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(scope)
    }
    guarded = {
        id(node)
        for scope in ast.walk(tree)
        if isinstance(scope, ast.If) and "TYPE_CHECKING" in ast.unparse(scope.test)
        for node in ast.walk(scope)
    }
    everywhere: set[str] = set()
    eager: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = {node.module.split(".")[0]}
        else:
            continue
        everywhere |= names
        if id(node) not in lazy and id(node) not in guarded:
            eager |= names
    return everywhere, eager


def modules() -> list[tuple[str, Path]]:
    return [(package, path) for package, root in PACKAGES.items() for path in sorted(root.rglob("*.py"))]


@pytest.mark.parametrize(("package", "path"), modules(), ids=lambda value: str(value).rpartition("/")[2])
def test_imports_point_down(package: str, path: Path) -> None:
    everywhere, eager = imports_of(path.read_text())
    ours = {name for name in everywhere if name.startswith("ytk_")} - {package}
    assert ours <= ALLOWED[package], f"{path.relative_to(ROOT)} imports {sorted(ours - ALLOWED[package])}"
    forbidden = LIGHT.get(package, set())
    assert not everywhere & forbidden, f"{path.relative_to(ROOT)} imports {sorted(everywhere & forbidden)}"
    if package == "ytk_core":
        assert not eager & HEAVY, f"{path.relative_to(ROOT)} imports {sorted(eager & HEAVY)} when it is imported"


def test_the_check_sees_a_sideways_import() -> None:
    everywhere, eager = imports_of("import ytk_core.jobs\ndef f():\n    from ytk_forge.audit import check\n")
    assert everywhere == {"ytk_core", "ytk_forge"}
    assert eager == {"ytk_core"}


def test_every_package_is_typed_and_documented() -> None:
    for root in PACKAGES.values():
        assert (root / "py.typed").exists(), root
        assert ast.get_docstring(ast.parse((root / "__init__.py").read_text())), root


def test_no_god_files() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for _, path in modules()
        if "_pb2" not in path.name and (lines := path.read_text().count("\n")) > 600
    }
    assert not long, f"split by what it is about: {long}"
