from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from ytk_core.archspec import ArchSpec
from ytk_core.digests import digest_bytes
from ytk_core.errors import FormatError, UserError
from ytk_core.formats.engine_bundle import EngineManifest
from ytk_core.formats.plugin_manifest import SUFFIX
from ytk_core.formats.plugin_meta import DeploymentTarget, InputDecl
from ytk_kronos import checks
from ytk_kronos.engine_files import PluginNode
from ytk_kronos.engines.base import PluginFile

from fakes.kronos_models import FLOAT, custom, save
from fakes.kronos_plugins import PASSED, delivered, same_meta

SERVED = [ArchSpec("amd64", level, "linux", "glibc236", "ov20264") for level in ("cpuv4", "cpuv3", "cpuv2")]


@pytest.fixture(autouse=True)
def _worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "worker_arch_specs", lambda: SERVED)
    monkeypatch.setattr(checks.hostlib, "openvino_version", lambda: "2026.4.1")


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "built.so"
    path.write_bytes(b"native code")
    return path


def check(path: Path, arch: ArchSpec = SERVED[0]) -> checks.CheckedPlugin:
    return checks.check_plugin(path, path.with_name(path.name + SUFFIX), arch)


def test_a_plugin_that_is_what_its_manifest_says_passes(library, tmp_path):
    checked = check(delivered(library, same_meta(), tmp_path / "p", SERVED[0]))
    assert checked.file.placeholder == "yasp::Same"
    assert checked.digest == digest_bytes(b"native code")


def test_a_changed_library_is_refused(library, tmp_path):
    path = delivered(library, same_meta(), tmp_path / "p", SERVED[0])
    path.write_bytes(b"native c0de")
    with pytest.raises(
        FormatError, match=r"plugin yasp::Same \(Same.so\): the file has blake3:.*its manifest is about"
    ) as caught:
        check(path)
    assert caught.value.code == "plugin_digest"


def test_a_failed_audit_is_refused_with_its_fix(library, tmp_path):
    failed = msgspec.structs.replace(
        PASSED, name="glibc", ok=False, found="GLIBC_2.38", wanted="<= 2.36", fix="Rebuild on Debian 12."
    )
    path = delivered(library, same_meta(), tmp_path / "p", SERVED[0], (PASSED, failed))
    with pytest.raises(UserError, match=r"failed the check 'glibc': found GLIBC_2\.38, wanted <= 2\.36") as caught:
        check(path)
    assert caught.value.hint == "Rebuild on Debian 12."


def test_a_tensorrt_kernel_is_refused_by_name(library, tmp_path):
    meta = same_meta(deployment_target=DeploymentTarget.TENSORRT)
    with pytest.raises(UserError, match="deployment_target=tensorrt, this engine takes cpu"):
        check(delivered(library, meta, tmp_path / "p", SERVED[0]))


def test_a_plugin_for_another_runtime_names_the_field(library, tmp_path):
    newer = dataclasses.replace(SERVED[0], runtime="glibc239")
    with pytest.raises(UserError, match="runtime glibc239 instead of glibc236") as caught:
        check(delivered(library, same_meta(), tmp_path / "p", newer))
    assert caught.value.code == "arch_mismatch"


def test_a_plugin_of_a_lower_level_fits_and_one_of_a_higher_does_not(library, tmp_path):
    low = delivered(library, same_meta(), tmp_path / "low", SERVED[1])
    assert check(low, SERVED[0]).file.name == "Same"
    high = delivered(library, same_meta(), tmp_path / "high", SERVED[0])
    with pytest.raises(UserError, match="device cpuv4 instead of cpuv3") as caught:
        check(high, SERVED[1])
    assert "-a amd64-cpuv3" in caught.value.hint


def plug(name: str, namespace: str = "yasp", version: str = "1") -> PluginFile:
    return PluginFile(path=Path(f"{name}.so"), namespace=namespace, name=name, version=version)


def node(op: str, name: str, namespace: str = "yasp", version: str = "1") -> PluginNode:
    return PluginNode(name=name, namespace=namespace, op=op, version=version)


def test_all_missing_plugins_are_named_at_once():
    nodes = [node("A", "a1"), node("A", "a2"), node("B", "b", namespace=""), node("C", "c")]
    with pytest.raises(UserError, match=r"for ::B \(1 node\), yasp::A \(2 nodes\); given: yasp::C") as caught:
        checks.check_registered(nodes, [plug("C")])
    assert caught.value.code == "missing_plugin"


def test_a_namespace_is_part_of_the_name():
    with pytest.raises(UserError, match=r"yasp::A \(1 node\); given: acme::A"):
        checks.check_registered([node("A", "a")], [plug("A", namespace="acme")])


def test_another_version_is_not_the_same_plugin():
    with pytest.raises(UserError, match=r"yasp::A version '2', A\.so is version '1'") as caught:
        checks.check_registered([node("A", "a", version="2")], [plug("A")])
    assert caught.value.code == "plugin_version"


def test_two_plugins_of_one_name_are_refused():
    with pytest.raises(UserError, match="two plugins register yasp::A") as caught:
        checks.check_registered([], [plug("A"), plug("A", version="2")])
    assert caught.value.code == "duplicate_plugin"


def test_a_node_that_differs_from_the_contract_is_refused_before_anything_is_loaded(library, tmp_path):
    model = save(tmp_path / "m.onnx", [custom("Same", ["x"], ["y"], "n")], {"x": (FLOAT, (2, 5))}, {"y": FLOAT})
    fixed = same_meta(inputs=[InputDecl(name="x", rank=2, dims=[None, 4])])
    plugin = check(delivered(library, fixed, tmp_path / "p", SERVED[0]))
    with pytest.raises(
        UserError, match=r"yasp::Same \(n\) input 0 axis 1: fixed-dim: the node has extent 5, the plugin extent 4"
    ) as caught:
        checks.check_contracts(model, [plugin], "fp32", SERVED[0])
    assert caught.value.code == "plugin_mismatch"
    checks.check_contracts(
        model, [check(delivered(library, same_meta(), tmp_path / "q", SERVED[0]))], "fp32", SERVED[0]
    )


def manifest(**changes: object) -> EngineManifest:
    values = {
        "arch_spec": str(SERVED[0]),
        "engine_name": "openvino",
        "engine_version": "2026.4.1",
        "precision": "fp32",
        "onnx_digest": digest_bytes(b"m"),
        "npz_digest": None,
    }
    return EngineManifest(**(values | changes))


def test_a_bundle_of_this_worker_is_accepted():
    assert checks.check_bundle(manifest(), "b.tgz") == SERVED[0]


@pytest.mark.parametrize(
    ("arch", "message"),
    [
        ("arm64-cpu82-linux-glibc236-ov20264", "cpu arm64 instead of amd64, device cpu82 instead of cpuv"),
        ("amd64-cpuv4-linux-glibc236-ov20253", "engine ov20253 instead of ov20264"),
        ("amd64-cpuv4-linux-glibc236-ort132", "engine ort132 instead of ov20264"),
    ],
)
def test_a_bundle_of_another_target_names_the_fields(arch, message):
    with pytest.raises(UserError, match=message) as caught:
        checks.check_bundle(manifest(arch_spec=arch), "b.tgz")
    assert caught.value.code == "arch_mismatch"


def test_a_bundle_of_another_patch_release_is_refused():
    with pytest.raises(
        UserError, match=r"b\.tgz was built by openvino 2026\.4\.0, this worker has 2026\.4\.1"
    ) as caught:
        checks.check_bundle(manifest(engine_version="2026.4.0"), "b.tgz")
    assert caught.value.code == "engine_version"
