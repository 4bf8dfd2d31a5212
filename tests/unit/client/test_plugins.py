"""What is refused before anything is sent."""

from __future__ import annotations

import pytest

from ytk_client.outputs import check_outputs
from ytk_client.plugins import check_model, load_plugins, manifest_path, plugin_inputs, prepare_source
from ytk_core.archspec import ArchSpec
from ytk_core.errors import FormatError, UserError
from ytk_core.formats.kernel_bundle import parse_bundle
from ytk_core.formats.plugin_manifest import CheckResult
from ytk_core.formats.plugin_meta import DeploymentTarget

from fakes import client_files as files

ARCH = ArchSpec.parse(files.ARCH)
GPU = "arm64-sm87-dos6010-cu114-trt86"


def refused(tmp_path, paths, onnx=None, arch=ARCH, precision="fp32") -> UserError:
    with pytest.raises(UserError) as caught:
        check_model(onnx or files.model(tmp_path / "m.onnx"), load_plugins(paths), precision=precision, arch=arch)
    assert caught.value.hint
    return caught.value


def test_fitting_plugin_is_accepted(tmp_path):
    check_model(files.model(tmp_path / "m.onnx"), load_plugins([files.plugin(tmp_path)]), precision="fp32", arch=ARCH)


def test_node_without_plugin_is_named(tmp_path):
    error = refused(tmp_path, [])
    assert "yasp::Fold" in error.message
    assert "--plugin-name Fold" in error.hint


def test_plugin_under_another_name_is_named(tmp_path):
    error = refused(tmp_path, [files.plugin(tmp_path, plugin_name="Unfold")])
    assert "'Fold'" in error.message
    assert "'Unfold'" in error.message
    assert "--plugin-name Fold" in error.hint


def test_plugin_that_no_node_uses_is_named(tmp_path):
    other = files.plugin(tmp_path, file_name="Other.so", plugin_name="Other")
    error = refused(tmp_path, [files.plugin(tmp_path), other])
    assert "Other.so" in error.message


def test_wrong_arity_is_named(tmp_path):
    error = refused(tmp_path, [files.plugin(tmp_path)], files.model(tmp_path / "m.onnx", inputs=2))
    assert "arity: the node has 2 inputs" in error.message


def test_wrong_dtype_is_named(tmp_path):
    error = refused(tmp_path, [files.plugin(tmp_path)], files.model(tmp_path / "m.onnx", dtype=11))
    assert "dtype: the node has float64" in error.message


def test_wrong_arch_names_the_field(tmp_path):
    other = "amd64-cpuv4-linux-glibc236-ov20264"
    error = refused(tmp_path, [files.plugin(tmp_path, arch=other)])
    assert error.code == "wrong_arch"
    assert "device cpuv4 instead of cpuv3" in error.message


def test_manifest_is_wanted_beside_the_plugin(tmp_path):
    path = files.plugin(tmp_path)
    manifest_path(path).unlink()
    with pytest.raises(FormatError, match=r"Fold\.so\.manifest\.json is missing") as caught:
        load_plugins([path])
    assert caught.value.code == "no_manifest"


def test_changed_plugin_is_not_the_audited_one(tmp_path):
    path = files.plugin(tmp_path)
    path.write_bytes(path.read_bytes() + b"!")
    with pytest.raises(FormatError, match="is not the file that"):
        load_plugins([path])


def test_failed_audit_is_refused_with_its_fix(tmp_path):
    check = CheckResult(name="needed", ok=False, found="libfoo.so", wanted="libc.so.6", fix="Link it statically.")
    with pytest.raises(FormatError, match=r"needed: found libfoo\.so") as caught:
        load_plugins([files.plugin(tmp_path, checks=(check,))])
    assert caught.value.hint == "Link it statically."


def test_plugins_of_one_file_name_get_inputs_of_their_own(tmp_path):
    plugins = load_plugins(
        [files.plugin(tmp_path / "a"), files.plugin(tmp_path / "b", plugin_name="Other", plugin_namespace="abc")]
    )
    assert sorted(plugin_inputs(plugins)) == [
        "plugins/Fold.so",
        "plugins/Fold.so.manifest.json",
        "plugins/abc-Other-1.so",
        "plugins/abc-Other-1.so.manifest.json",
    ]


def test_source_is_renamed_in_a_copy(tmp_path):
    source = tmp_path / "k.module_source.py"
    source.write_bytes(files.kernel_text())
    before = source.read_bytes()
    meta = parse_bundle(prepare_source(source, files.ARCH, name="Mine", namespace="abc")).meta
    assert (meta.plugin_namespace, meta.plugin_name) == ("abc", "Mine")
    assert source.read_bytes() == before


def test_kernel_for_another_kind_of_target_is_refused(tmp_path):
    source = tmp_path / "k.module_source.py"
    source.write_bytes(files.kernel_text())
    with pytest.raises(UserError, match="deployment_target=cpu") as caught:
        prepare_source(source, GPU, name="Fold", namespace=None)
    assert caught.value.code == "wrong_deployment_target"
    assert "--config deployment_target=tensorrt" in caught.value.hint


def test_kernel_for_tensorrt_is_refused_on_a_cpu(tmp_path):
    source = tmp_path / "k.module_source.py"
    source.write_bytes(files.kernel_text(deployment_target=DeploymentTarget.TENSORRT))
    with pytest.raises(UserError, match="takes deployment_target=cpu"):
        prepare_source(source, files.ARCH, name="Fold", namespace=None)


@pytest.mark.parametrize("text", [b"import os\n", b"", b"HEADER = 'x'\n", b"\xff\xfe"])
def test_what_is_no_kernel_bundle_is_refused(tmp_path, text):
    source = tmp_path / "k.py"
    source.write_bytes(text)
    with pytest.raises(FormatError, match=r"k\.py"):
        prepare_source(source, files.ARCH, name="Fold", namespace=None)


def test_outputs_are_checked_before_the_work(tmp_path):
    check_outputs(tmp_path / "new/dir/out.so", None)
    assert (tmp_path / "new/dir").is_dir()
    (tmp_path / "file").touch()
    for path, words in [
        (tmp_path, "it is a directory"),
        (tmp_path / "file/out.so", "its directory cannot be made"),
        (tmp_path / "../../../dev/null", "not a regular file"),
    ]:
        target = type(path)("/dev/null") if "dev/null" in str(path) else path
        with pytest.raises(UserError, match=words) as caught:
            check_outputs(target)
        assert caught.value.code == "bad_output_path"
    with pytest.raises(UserError, match="two outputs"):
        check_outputs(tmp_path / "a", tmp_path / "a")
