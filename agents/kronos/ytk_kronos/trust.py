"""Whose plugins this worker loads: those that a trusted Forge signed, unless its operator lets it load any.

A plugin is native code that runs with the engine. Signatures are checked in the trusted process, before a library is within
reach of anything that would load it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ytk_core.errors import UserError
from ytk_core.formats.plugin_manifest import read_plugin_manifest
from ytk_core.signing import PublicKey, read_trusted_keys, verify_manifest

ALLOW_FLAG = "--allow-unsigned-plugins"
# Nobody that is trusted here vouches for it: what an operator can choose to accept. A changed byte is never among these.
_UNVOUCHED = frozenset({"unsigned_plugin", "untrusted_key"})


class PluginTrust(msgspec.Struct, frozen=True, kw_only=True):
    """Whose signatures count. Without keys and permission nothing is loaded.

    ``keys``: public keys of Forges. ``allow_unsigned``: also load what none of them signed.
    """

    keys: tuple[PublicKey, ...] = ()
    allow_unsigned: bool = False

    @classmethod
    def read(cls, files: Sequence[Path], *, allow_unsigned: bool = False) -> PluginTrust:
        """Read files of trusted keys.

        Raises:
            FormatError: A file cannot be read, or a line of it is no key.
        """
        keys = dict.fromkeys(key for path in files for key in read_trusted_keys(path))
        return cls(keys=tuple(keys), allow_unsigned=allow_unsigned)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What a worker of this trust advertises: which plugins it loads, and whose."""
        word = "any" if self.allow_unsigned else "signed"
        return (f"plugins=={word}", *(f"trusted_key=={key.key_id}" for key in self.keys))

    def check(self, library: Path, manifest_path: Path) -> str | None:
        """Check who vouches for a library; nothing is loaded.

        Args:
            library: The ``.so``.
            manifest_path: Its manifest.

        Returns:
            The id of the trusted key that signed it; None where none did and this worker loads such plugins too.

        Raises:
            UserError: ``unsigned_plugin``, ``untrusted_key``, ``bad_signature``, ``plugin_changed``: as
                :func:`ytk_core.signing.verify_manifest`.
            FormatError: The manifest is none.
        """
        manifest = read_plugin_manifest(manifest_path)
        try:
            return verify_manifest(manifest, library, self.keys).key_id
        except UserError as err:
            if err.code not in _UNVOUCHED:
                raise
            if self.allow_unsigned:
                return None
            if not self.keys:
                err.hint = (
                    "This worker trusts no Forge yet: start it with --trusted-keys FILE (`ytk-forge key` prints the line), "
                    f"or with {ALLOW_FLAG}."
                )
            raise
