"""Whose plugins are loaded: every way in which a plugin can be somebody else's, and what the worker's operator allows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from onnx import helper

from ytk_core.agent.main import AgentSettings
from ytk_core.archspec import ArchSpec
from ytk_core.dtypes import DType
from ytk_core.errors import FailureClass, FormatError, UserError
from ytk_core.formats.engine_bundle import read_manifest
from ytk_core.formats.plugin_manifest import SUFFIX, read_plugin_manifest, write_plugin_manifest
from ytk_core.formats.reference import Reference, Sample, TensorInfo, write_reference
from ytk_core.jobs import EngineBuildParams, EngineVerifyParams
from ytk_core.signing import SigningKey, load_or_create_key, sign_manifest
from ytk_kronos import library
from ytk_kronos import main as kronos
from ytk_kronos.trust import PluginTrust

from fakes.kronos_models import FLOAT, custom, save
from fakes.kronos_plugins import delivered, same_meta

ARCH = ArchSpec("amd64", "cpuv2", "linux", "glibc236", "ov20264")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    return load_or_create_key(tmp_path_factory.mktemp("forge") / "signing_key.pem")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    return load_or_create_key(tmp_path_factory.mktemp("stranger") / "signing_key.pem")


def manifest_of(plugin: Path) -> Path:
    return plugin.with_name(plugin.name + SUFFIX)


def sign(plugin: Path, key: SigningKey) -> Path:
    write_plugin_manifest(manifest_of(plugin), sign_manifest(read_plugin_manifest(manifest_of(plugin)), key))
    return plugin


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    (tmp_path / "built.so").write_bytes(b"native code")
    return delivered(tmp_path / "built.so", same_meta(), tmp_path / "p", ARCH)


@pytest.fixture
def signed(plain: Path, key: SigningKey) -> Path:
    return sign(plain, key)


def edit_manifest(plugin: Path) -> None:
    edited = msgspec.structs.replace(read_plugin_manifest(manifest_of(plugin)), toolchain="another")
    write_plugin_manifest(manifest_of(plugin), edited)


def edit_library(plugin: Path) -> None:
    plugin.write_bytes(b"native c0de")


class TestOnePlugin:
    def test_signed_by_a_trusted_forge(self, signed, key):
        assert PluginTrust(keys=(key.public,)).check(signed, manifest_of(signed)) == key.public.key_id

    @pytest.mark.parametrize("allow", [False, True])
    @pytest.mark.parametrize(("edit", "code"), [(edit_manifest, "bad_signature"), (edit_library, "plugin_changed")])
    def test_a_changed_byte_is_refused_whatever_is_allowed(self, signed, key, edit, code, allow):
        edit(signed)
        with pytest.raises(UserError, match=r"yasp::Same \(Same\.so\).*changed") as caught:
            PluginTrust(keys=(key.public,), allow_unsigned=allow).check(signed, manifest_of(signed))
        assert (caught.value.code, caught.value.failure_class) == (code, FailureClass.YOURS)

    def test_an_unsigned_one_is_refused_and_the_next_step_named(self, plain, key):
        with pytest.raises(
            UserError, match=f"its manifest is not signed; trusted keys here: {key.public.key_id}"
        ) as caught:
            PluginTrust(keys=(key.public,)).check(plain, manifest_of(plain))
        assert caught.value.code == "unsigned_plugin"
        assert "ytk-forge sign" in caught.value.hint
        assert "--allow-unsigned-plugins" in caught.value.hint

    def test_anothers_signature_is_refused(self, plain, key, stranger):
        with pytest.raises(UserError, match=f"key {stranger.public.key_id}, which is not trusted here") as caught:
            PluginTrust(keys=(key.public,)).check(sign(plain, stranger), manifest_of(plain))
        assert caught.value.code == "untrusted_key"

    def test_a_worker_that_trusts_nobody_says_how_to_change_that(self, signed):
        with pytest.raises(UserError, match="trusted keys: none") as caught:
            PluginTrust().check(signed, manifest_of(signed))
        assert "--trusted-keys" in caught.value.hint

    def test_what_an_operator_can_allow(self, plain, key, stranger):
        trust = PluginTrust(keys=(key.public,), allow_unsigned=True)
        assert trust.check(plain, manifest_of(plain)) is None
        assert trust.check(sign(plain, stranger), manifest_of(plain)) is None
        assert trust.check(sign(plain, key), manifest_of(plain)) == key.public.key_id


class TestWorker:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Callable[..., AgentSettings]:
        def make(**extra: object) -> AgentSettings:
            return AgentSettings(
                role="kronos",
                controller="127.0.0.1:1",
                token=None,
                state_dir=tmp_path,
                worker_id="w",
                sandbox_mode="required",
                slots=1,
                extra={"host_cache": tmp_path, **extra},
            )

        return make

    def test_it_says_whose_plugins_it_loads(self, settings, key, tmp_path):
        (tmp_path / "keys").write_text(f"# ours\n{key.public} {key.public.key_id}\n")
        trusting = kronos.describe(settings(trusted_keys=(tmp_path / "keys",))).capabilities
        assert {"plugins==signed", f"trusted_key=={key.public.key_id}"} <= set(trusting)
        assert "plugins==any" in kronos.describe(settings(allow_unsigned_plugins=True)).capabilities

    def test_a_file_that_holds_no_key_stops_the_agent(self, settings, tmp_path):
        (tmp_path / "keys").write_text("ed25519:short\n")
        with pytest.raises(FormatError, match=r"keys:1: not a public key"):
            kronos.make_handlers(settings(trusted_keys=(tmp_path / "keys",)))


class TestJobs:
    """Through the handlers: what is refused here is refused before an engine starts."""

    params = EngineBuildParams(iterations=2, warmup=1, threads=1)

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        nodes = [
            custom("Same", ["x"], ["s"], "same"),
            helper.make_node("Relu", ["s"], ["y"], name="relu"),
        ]
        return save(tmp_path / "model.onnx", nodes, {"x": (FLOAT, (2, 4))}, {"y": FLOAT})

    def test_built_with_a_signed_plugin_and_refused_elsewhere(self, model, plugin, arch, key, host_cache, tmp_path):
        made = sign(delivered(plugin("identity").path, same_meta(), tmp_path / "p", arch), key)
        out = tmp_path / "engine.tgz"
        said: list[str] = []
        trust = PluginTrust(keys=(key.public,))
        library.build(
            model, None, out, plugins=[made], params=self.params, cache_dir=host_cache, log=said.append, trust=trust
        )
        assert [entry.signed_by for entry in read_manifest(out).plugins] == [key.public.key_id]
        assert f"Same.so: signed with key {key.public.key_id}" in "".join(said)
        # The bundle travels; a worker that does not trust this Forge loads nothing of it.
        x = np.zeros((2, 4), np.float32)
        infos = [TensorInfo(name=name, dtype=DType.FLOAT32, shape=(2, 4)) for name in ("x", "y")]
        reference = tmp_path / "reference.npz"
        sample = Sample(inputs={"x": x}, outputs={"y": x})
        write_reference(reference, Reference(inputs=(infos[0],), outputs=(infos[1],), samples=(sample,)))
        with pytest.raises(UserError, match="not trusted here") as caught:
            library.verify(
                reference,
                out,
                tmp_path / "v.json",
                params=EngineVerifyParams(iterations=1, warmup=0, threads=1),
                cache_dir=host_cache,
                log=said.append,
                trust=PluginTrust(),
            )
        assert caught.value.code == "untrusted_key"

    def test_an_unsigned_plugin_reaches_no_engine(self, model, plain, key, tmp_path):
        with pytest.raises(UserError, match="its manifest is not signed"):
            library.build(
                model,
                None,
                tmp_path / "engine.tgz",
                plugins=[plain],
                params=self.params,
                cache_dir=tmp_path / "hosts",
                log=print,
                trust=PluginTrust(keys=(key.public,)),
            )
        assert not (tmp_path / "hosts").exists()
