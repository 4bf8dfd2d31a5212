"""Signed plugin manifests (ed25519): who loads a ``.so`` can tell that its own Forge built and audited it.

Forge holds a private key (:func:`load_or_create_key`) and signs (:func:`sign_manifest`). Whoever loads a library calls
:func:`verify_manifest` with the public keys it trusts. The signature covers every field of the manifest, and through
``so_digest`` every byte of the library.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import re
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ytk_core.digests import blob_name, digest_bytes, digest_file
from ytk_core.errors import BoardError, FormatError, UserError
from ytk_core.files import disk_error
from ytk_core.formats.plugin_manifest import ManifestSignature, PluginManifest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ALGORITHM = "ed25519"
# Keeps a signature from being taken for one over something else that the same key signs one day.
_CONTEXT = b"ytk plugin manifest 1\0"
_KEY_BYTES = 32
_MAX_KEY_FILE_BYTES = 64 * 1024
_HINT_REBUILD = "Build it again with `ytk embedded build-plugin`, and keep the .so and its .manifest.json together."


class PublicKey(msgspec.Struct, frozen=True):
    """A key that signatures are checked with; ``raw`` is its 32 bytes."""

    raw: bytes

    @property
    def key_id(self) -> str:
        """Sixteen hex digits that name the key in signatures, logs and messages."""
        return blob_name(digest_bytes(self.raw))[:16]

    def __str__(self) -> str:
        return f"{ALGORITHM}:{base64.b64encode(self.raw).decode()}"

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """Parse ``ed25519:<base64>``.

        Raises:
            FormatError: Code ``bad_public_key``.
        """
        kind, _, encoded = text.strip().partition(":")
        try:
            raw = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            raw = b""
        if kind != ALGORITHM or len(raw) != _KEY_BYTES:
            msg = f"not a public key: {text.strip()[:80]!r}"
            raise FormatError(
                msg, code="bad_public_key", hint="`ytk-forge key` prints Forge's public key as ed25519:<base64>."
            )
        return cls(raw)


class SigningKey:
    """A private key. It is never printed, and leaves its file only into this process."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private

    @property
    def public(self) -> PublicKey:
        """The key that its signatures are checked with."""
        return PublicKey(self._private.public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """Give the 64 bytes of the signature; the same key and message give the same bytes."""
        return self._private.sign(message)


def load_or_create_key(path: Path) -> SigningKey:
    """Read the private key at ``path`` (PEM, mode 0600); make one where there is none.

    Two processes that start at once end with the same key.

    Raises:
        FormatError: The file is no ed25519 key in PEM ("bad_signing_key").
        UserError: Others may read it ("key_permissions"), or the directory cannot be written ("key_directory").
        BoardError: Code ``disk_full``.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    if not path.exists():
        pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        _create_once(path, pem)
    return load_key(path)


def load_key(path: Path) -> SigningKey:
    """Read a private key.

    Raises:
        FormatError: The file is no ed25519 key in PEM ("bad_signing_key").
        UserError: Others than the owner may read it ("key_permissions").
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    hint = "Give the path of a key that Forge made; delete the file to let Forge make a new one."
    try:
        with path.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            pem = stream.read(_MAX_KEY_FILE_BYTES)
        key = load_pem_private_key(pem, password=None)
    # TypeError: the key is encrypted. UnsupportedAlgorithm is an Exception of cryptography's own for other kinds.
    except (OSError, ValueError, TypeError) as err:
        # The text of the error never has bytes of the file in it.
        msg = f"{path}: not a signing key in PEM: {type(err).__name__}"
        raise FormatError(msg, code="bad_signing_key", hint=hint) from err
    if stat.S_IMODE(mode) & 0o077:
        msg = f"{path}: the signing key has mode {stat.S_IMODE(mode):04o}, so others than its owner can use it"
        raise UserError(
            msg,
            code="key_permissions",
            hint=f"If nobody has read it: chmod 600 {path}. Else delete it: a new one is made.",
        )
    if not isinstance(key, Ed25519PrivateKey):
        msg = f"{path}: a {type(key).__name__}, not an ed25519 key"
        raise FormatError(msg, code="bad_signing_key", hint=hint)
    return SigningKey(key)


def _create_once(path: Path, content: bytes) -> None:
    """Write a file of mode 0600 that nobody ever sees half of; an existing one is kept."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            # A link, not a rename: whoever comes second must not replace the first one's key.
            with contextlib.suppress(FileExistsError):
                os.link(aside, path)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as err:
        full: BoardError | None = disk_error(err, path)
        if full is not None:
            raise full from err
        msg = f"cannot write a signing key to {path}: {err.strerror}"
        raise UserError(
            msg, code="key_directory", hint=f"Make the directory and let this user write it: {path.parent}."
        ) from err


def signed_bytes(manifest: PluginManifest) -> bytes:
    """Give the bytes that a manifest's signature is over: every field but the signature, keys in order, no spaces."""
    bare = msgspec.structs.replace(manifest, signature=msgspec.UNSET)
    return _CONTEXT + msgspec.json.encode(bare, order="sorted")


def sign_manifest(manifest: PluginManifest, key: SigningKey) -> PluginManifest:
    """Give the manifest with the key's signature; an earlier signature is replaced."""
    value = base64.b64encode(key.sign(signed_bytes(manifest))).decode()
    signature = ManifestSignature(algorithm=ALGORITHM, key_id=key.public.key_id, value=value)
    return msgspec.structs.replace(manifest, signature=signature)


def verify_manifest(manifest: PluginManifest, so_path: Path, trusted_keys: Sequence[PublicKey]) -> PublicKey:
    """Check that a trusted Forge signed the manifest and that the library is the one it signed. Nothing is loaded.

    Args:
        manifest: As read from the file beside the library.
        so_path: The library.
        trusted_keys: Whose signatures count; see :func:`read_trusted_keys`.

    Returns:
        The key that signed it.

    Raises:
        UserError: ``unsigned_plugin``: there is no signature. ``untrusted_key``: the key is not among the trusted ones.
            ``bad_signature``: the manifest was changed after it was signed. ``plugin_changed``: the library is another
            file than the one that was signed.
        FormatError: The library cannot be read ("no_such_file").
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    what = f"plugin {manifest.meta.plugin_namespace}::{manifest.meta.plugin_name} ({so_path.name})"
    trusted = {key.key_id: key for key in trusted_keys}
    listed = ", ".join(sorted(trusted)) or "none"
    signature = manifest.signature
    if isinstance(signature, msgspec.UnsetType):
        msg = f"{what}: its manifest is not signed; trusted keys here: {listed}"
        hint = (
            "Build it with a Forge whose key is trusted here, or have that Forge's owner audit and sign this one "
            "(`ytk-forge sign`); a worker started with --allow-unsigned-plugins loads any."
        )
        raise UserError(msg, code="unsigned_plugin", hint=hint)
    if signature.algorithm != ALGORITHM or signature.key_id not in trusted:
        msg = f"{what}: signed with {signature.algorithm} key {signature.key_id}, which is not trusted here; trusted keys: {listed}"
        hint = "Build it with a Forge whose key is trusted here, or add that Forge's key (`ytk-forge key`) to the trusted keys."
        raise UserError(msg, code="untrusted_key", hint=hint)
    key = trusted[signature.key_id]
    try:
        value = base64.b64decode(signature.value, validate=True)
        Ed25519PublicKey.from_public_bytes(key.raw).verify(value, signed_bytes(manifest))
    except (InvalidSignature, binascii.Error) as err:
        msg = f"{what}: the manifest is not the one that key {signature.key_id} signed: a field or the signature was changed"
        raise UserError(msg, code="bad_signature", hint=_HINT_REBUILD) from err
    try:
        digest = digest_file(so_path)
    except OSError as err:
        msg = f"{so_path}: cannot be read: {err.strerror}"
        raise FormatError(msg, code="no_such_file", hint="Check the path.") from err
    if digest != manifest.so_digest:
        msg = f"{what}: the file has {digest}, but {manifest.so_digest} was signed: the library was changed"
        raise UserError(msg, code="plugin_changed", hint=_HINT_REBUILD)
    return key


def read_trusted_keys(path: Path) -> tuple[PublicKey, ...]:
    """Read a file of public keys: one ``ed25519:<base64>`` a line, then a comment; empty lines and ``#`` lines count not.

    Raises:
        FormatError: It cannot be read, or a line is no key; the line is named.
    """
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as err:
        msg = f"{path}: not a readable file of public keys: {err}"
        raise FormatError(msg, code="bad_public_key", hint="`ytk-forge key` prints such a line.") from err
    keys: dict[PublicKey, None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not (words := re.sub(r"^\s*#.*", "", line).split()):
            continue
        try:
            keys[PublicKey.parse(words[0])] = None
        except FormatError as err:
            raise FormatError(f"{path}:{number}: {err.message}", code=err.code, hint=err.hint) from err
    return tuple(keys)
