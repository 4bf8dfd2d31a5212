"""Keys, signatures, and every way in which a signed plugin can be something else than what was signed."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from golden import builders

from ytk_core.digests import digest_bytes
from ytk_core.errors import FormatError, UserError
from ytk_core.formats.plugin_manifest import PluginManifest, read_plugin_manifest, write_plugin_manifest
from ytk_core.signing import (
    PublicKey,
    SigningKey,
    load_key,
    load_or_create_key,
    read_trusted_keys,
    sign_manifest,
    signed_bytes,
    verify_manifest,
)

LIBRARY = b"\x7fELF" + bytes(range(256))


@pytest.fixture(scope="module")
def key(tmp_path_factory) -> SigningKey:
    return load_or_create_key(tmp_path_factory.mktemp("key") / "signing_key.pem")


@pytest.fixture
def library(tmp_path) -> Path:
    path = tmp_path / "Fold.so"
    path.write_bytes(LIBRARY)
    return path


@pytest.fixture
def signed(key, tmp_path) -> PluginManifest:
    builders._plugin_manifest(tmp_path / "unsigned.json")
    bare = msgspec.structs.replace(read_plugin_manifest(tmp_path / "unsigned.json"), so_digest=digest_bytes(LIBRARY))
    return sign_manifest(bare, key)


class TestKeys:
    def test_made_once_with_mode_0600(self, tmp_path):
        path = tmp_path / "k.pem"
        first = load_or_create_key(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert load_or_create_key(path).public == first.public
        assert [p.name for p in tmp_path.iterdir()] == ["k.pem"]

    def test_mode_does_not_follow_the_umask(self, tmp_path):
        old = os.umask(0)
        try:
            load_or_create_key(tmp_path / "k.pem")
        finally:
            os.umask(old)
        assert stat.S_IMODE((tmp_path / "k.pem").stat().st_mode) == 0o600

    def test_two_processes_end_with_one_key(self, tmp_path):
        script = (
            "import sys; from pathlib import Path; from ytk_core.signing import load_or_create_key\n"
            "print(load_or_create_key(Path(sys.argv[1])).public)"
        )
        command = [sys.executable, "-c", script, str(tmp_path / "k.pem")]
        started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        assert len({child.communicate(timeout=600)[0] for child in started}) == 1
        assert [p.name for p in tmp_path.iterdir()] == ["k.pem"]

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
    def test_a_key_that_others_can_read_is_refused(self, tmp_path, mode):
        load_or_create_key(tmp_path / "k.pem")
        (tmp_path / "k.pem").chmod(mode)
        with pytest.raises(UserError, match=f"mode {mode:04o}") as caught:
            load_or_create_key(tmp_path / "k.pem")
        assert caught.value.code == "key_permissions"
        assert "chmod 600" in caught.value.hint

    def test_what_is_no_key_is_refused_and_never_shown(self, tmp_path):
        path = tmp_path / "k.pem"
        path.write_text("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n")
        path.chmod(0o600)
        with pytest.raises(FormatError) as caught:
            load_key(path)
        assert caught.value.code == "bad_signing_key"
        assert "c2VjcmV0" not in caught.value.message

    def test_another_kind_of_key_is_refused(self, tmp_path):
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        path = tmp_path / "k.pem"
        path.write_bytes(X25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        path.chmod(0o600)
        with pytest.raises(FormatError, match="not an ed25519 key"):
            load_key(path)

    def test_no_directory(self, tmp_path):
        with pytest.raises(UserError) as caught:
            load_or_create_key(tmp_path / "none" / "k.pem")
        assert caught.value.code == "key_directory"

    def test_public_key_text_round_trip(self, key):
        assert PublicKey.parse(f" {key.public}\n") == key.public
        assert len(key.public.key_id) == 16

    @pytest.mark.parametrize("text", ["", "ed25519:", "ed25519:AAAA", "rsa:" + "A" * 43 + "=", "ed25519:!!!!"])
    def test_bad_public_keys(self, text):
        with pytest.raises(FormatError, match="not a public key"):
            PublicKey.parse(text)

    def test_trusted_keys_file(self, tmp_path, key):
        path = tmp_path / "trusted"
        path.write_text(f"# our Forges\n\n{key.public} forge-1\n{key.public}\n")
        assert read_trusted_keys(path) == (key.public,)
        path.write_text(f"{key.public}\noops\n")
        with pytest.raises(FormatError, match=r"trusted:2: not a public key: 'oops'"):
            read_trusted_keys(path)
        with pytest.raises(FormatError, match="not a readable file"):
            read_trusted_keys(tmp_path / "none")


class TestVerify:
    def test_what_was_signed_is_accepted_also_through_a_file(self, tmp_path, key, signed, library):
        write_plugin_manifest(tmp_path / "m.json", signed)
        read = read_plugin_manifest(tmp_path / "m.json")
        assert read == signed
        other = load_or_create_key(tmp_path / "other.pem").public
        assert verify_manifest(read, library, [other, key.public]) == key.public

    def test_signing_twice_gives_the_same_bytes(self, key, signed):
        assert sign_manifest(signed, key) == signed

    def test_unsigned(self, key, signed, library):
        bare = msgspec.structs.replace(signed, signature=msgspec.UNSET)
        self.refused(bare, library, key, "unsigned_plugin", "not signed")

    @pytest.mark.parametrize("at", [0, 4, len(LIBRARY) - 1])
    def test_every_changed_byte_of_the_library_is_refused(self, key, signed, library, at):
        changed = bytearray(LIBRARY)
        changed[at] ^= 1
        library.write_bytes(changed)
        self.refused(signed, library, key, "plugin_changed", "the library was changed")

    def test_a_byte_more_is_refused(self, key, signed, library):
        library.write_bytes(LIBRARY + b"\0")
        self.refused(signed, library, key, "plugin_changed", signed.so_digest)

    def test_a_changed_library_with_a_changed_digest_is_refused(self, key, signed, library):
        library.write_bytes(b"evil")
        forged = msgspec.structs.replace(signed, so_digest=digest_bytes(b"evil"))
        self.refused(forged, library, key, "bad_signature", "a field or the signature was changed")

    @pytest.mark.parametrize("field", [f for f in PluginManifest.__struct_fields__ if f != "signature"])
    def test_every_changed_field_is_refused(self, key, signed, library, field):
        value = getattr(signed, field)
        other = {
            int: lambda: value + 1,
            str: lambda: value + "x",
            tuple: lambda: value[:-1],
            dict: lambda: {**value, "x": "1"},
        }.get(type(value), lambda: None)()
        if field == "meta":
            other = msgspec.structs.replace(value, sites=value.sites + 1)
        elif field == "unverified":
            other = ("nothing",)
        forged = msgspec.structs.replace(signed, **{field: other})
        assert signed_bytes(forged) != signed_bytes(signed)
        self.refused(forged, library, key, "bad_signature", "a field or the signature was changed")

    def test_another_forges_key_is_not_trusted(self, tmp_path, key, signed, library):
        stranger = load_or_create_key(tmp_path / "stranger.pem")
        forged = sign_manifest(signed, stranger)
        self.refused(forged, library, key, "untrusted_key", stranger.public.key_id)

    def test_a_strangers_signature_under_a_trusted_id_is_refused(self, tmp_path, key, signed, library):
        stranger = load_or_create_key(tmp_path / "stranger.pem")
        value = sign_manifest(signed, stranger).signature.value
        forged = msgspec.structs.replace(signed, signature=msgspec.structs.replace(signed.signature, value=value))
        self.refused(forged, library, key, "bad_signature", "was changed")

    @pytest.mark.parametrize("value", ["", "!", base64.b64encode(b"short").decode()])
    def test_a_damaged_signature_is_refused(self, key, signed, library, value):
        forged = msgspec.structs.replace(signed, signature=msgspec.structs.replace(signed.signature, value=value))
        self.refused(forged, library, key, "bad_signature", "was changed")

    def test_another_algorithm_is_refused(self, key, signed, library):
        forged = msgspec.structs.replace(signed, signature=msgspec.structs.replace(signed.signature, algorithm="none"))
        self.refused(forged, library, key, "untrusted_key", "none key")

    def test_nobody_is_trusted(self, signed, library):
        with pytest.raises(UserError, match="trusted keys: none"):
            verify_manifest(signed, library, [])

    def test_no_library(self, tmp_path, key, signed):
        with pytest.raises(FormatError) as caught:
            verify_manifest(signed, tmp_path / "none.so", [key.public])
        assert caught.value.code == "no_such_file"

    def refused(self, manifest, library, key, code, says):
        with pytest.raises(UserError) as caught:
            verify_manifest(manifest, library, [key.public])
        assert caught.value.code == code
        assert says in caught.value.message
        assert caught.value.hint
