"""Built plugins by the content that decides them."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ytk_core.digests import blob_name, digest_bytes, digest_file
from ytk_core.errors import FormatError
from ytk_core.files import disk_error
from ytk_core.formats.plugin_manifest import PluginManifest, read_plugin_manifest

PLUGIN, MANIFEST, LOG = "plugin.so", "manifest.json", "build.log"
FILES = (PLUGIN, MANIFEST, LOG)
MAX_BYTES = 2 * 1024**3
# A build takes minutes at most: a temporary directory older than this was left by a process that died.
_STALE_S = 24 * 3600.0


def cache_key(parts: Mapping[str, object]) -> str:
    """Give the key for everything that a build depends on; the order of the parts does not matter."""
    return blob_name(digest_bytes(msgspec.json.encode(dict(parts), order="deterministic")))


class BuildCache:
    """A directory of finished builds, safe for several processes at once.

    An entry is made aside and renamed into place; whoever comes second keeps the first's. An entry whose library is not
    what its manifest says is treated as absent and removed.
    """

    def __init__(self, directory: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.directory = directory
        self.max_bytes = max_bytes

    def _entry(self, key: str) -> Path:
        return self.directory / key[:2] / key

    def get(self, key: str) -> tuple[Path, PluginManifest] | None:
        """Give the directory with an entry's ``FILES`` and its manifest, or None."""
        entry = self._entry(key)
        if not entry.is_dir():
            return None
        try:
            manifest = read_plugin_manifest(entry / MANIFEST)
            intact = digest_file(entry / PLUGIN) == manifest.so_digest and (entry / LOG).is_file()
        except (FormatError, OSError):
            intact = False
        if not intact:
            self._remove(entry)
            return None
        # The time of the last use decides what goes first when the cache is full.
        with contextlib.suppress(OSError):
            os.utime(entry)
        return entry, manifest

    def put(self, key: str, built: Path) -> None:
        """Keep the ``FILES`` in ``built`` under a key.

        Raises:
            BoardError: Code ``disk_full``.
        """
        entry = self._entry(key)
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            aside = Path(tempfile.mkdtemp(prefix="new-", dir=self.directory))
            try:
                for name in FILES:
                    shutil.copyfile(built / name, aside / name)
                aside.rename(entry)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
        except OSError as err:
            if entry.is_dir():
                # Another process was first: an entry is never empty, so the rename failed.
                return
            if (full := disk_error(err, entry)) is not None:
                raise full from err
            raise
        self._prune()

    def _remove(self, entry: Path) -> None:
        """Take an entry away in one step, so that no reader sees half of it."""
        aside = Path(tempfile.mkdtemp(prefix="old-", dir=self.directory))
        with contextlib.suppress(OSError):
            entry.rename(aside / "entry")
        shutil.rmtree(aside, ignore_errors=True)

    def _prune(self) -> None:
        """Remove the entries that were used longest ago until the rest fits, and what dead processes left."""
        entries: list[tuple[float, int, Path]] = []
        for entry in self.directory.glob("??/*"):
            with contextlib.suppress(OSError):
                size = sum(file.stat().st_size for file in entry.iterdir())
                entries.append((entry.stat().st_mtime, size, entry))
        total = sum(size for _, size, _ in entries)
        for _, size, entry in sorted(entries):
            if total <= self.max_bytes:
                break
            self._remove(entry)
            total -= size
        for left in (*self.directory.glob("new-*"), *self.directory.glob("old-*")):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > _STALE_S:
                    shutil.rmtree(left, ignore_errors=True)
