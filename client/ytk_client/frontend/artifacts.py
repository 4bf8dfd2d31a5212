"""Where prepare's files go, and how they get there: all of them or none."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from ytk_core.errors import FormatError, UserError
from ytk_core.files import disk_error
from ytk_core.formats.prepare_outputs import read_candidates

CANDIDATES_DIR = "plugin_candidates"


@dataclass(frozen=True)
class OutputPaths:
    """The files named on the command line; all others lie beside the ONNX.

    Raises:
        UserError: ``npz_not_beside_onnx`` or ``same_output``.
    """

    onnx: Path
    npz: Path
    reference: Path

    def __post_init__(self) -> None:
        resolved = [path.resolve() for path in (self.onnx, self.npz, self.reference)]
        if resolved[0].parent != resolved[1].parent:
            # ONNX forbids external data outside of the model's directory, and parsers enforce it.
            msg = f"--npz-out {self.npz} is not in the directory of --onnx-out {self.onnx}"
            raise UserError(msg, code="npz_not_beside_onnx", hint=f"--npz-out {self.onnx.with_suffix('.npz')}")
        names = {*resolved, *(path.resolve() for path in (self.plugins, self.fx_nodes))}
        names |= {path.resolve() for path in (self.debug_onnx, self.debug_reference)}
        if len(names) < len(resolved) + 4:
            msg = f"two outputs have the same path: {self.onnx}, {self.npz}, {self.reference}, {self.plugins}, {self.fx_nodes}"
            raise UserError(msg, code="same_output", hint="Give each output a name of its own.")

    @property
    def folder(self) -> Path:
        """The directory of the ONNX."""
        return self.onnx.parent

    @property
    def plugins(self) -> Path:
        """The plugin table."""
        return self.folder / "plugins.json"

    @property
    def fx_nodes(self) -> Path:
        """The nodes of the exported program."""
        return self.folder / "fx_nodes.json"

    @property
    def debug_onnx(self) -> Path:
        """The copy of the graph with taps."""
        return self.onnx.with_suffix(".debug.onnx")

    @property
    def debug_reference(self) -> Path:
        """The reference of the copy with taps."""
        return self.onnx.with_suffix(".debug.reference.npz")

    @property
    def candidates_dir(self) -> Path:
        """The directory of the regions."""
        return self.folder / CANDIDATES_DIR

    @property
    def candidates(self) -> Path:
        """The diagnosis."""
        return self.candidates_dir / "candidates.json"


def own_candidate_files(paths: OutputPaths, suffixes: Sequence[str]) -> set[Path]:
    """Give the region files that an earlier prepare wrote here: exactly those that its candidates.json names.

    Kernels, reports, libraries and whatever else lies in these directories is somebody else's.
    """
    try:
        earlier = read_candidates(paths.candidates)
    except (FormatError, OSError):
        return set()
    names = [each.proposed_op.split("::")[-1] for each in earlier]
    return {paths.candidates_dir / f"{name}{suffix}" for name in names for suffix in suffixes}


@dataclass
class Staging:
    """Collects outputs in hidden directories beside their destinations and moves them in place together.

    Use as a context manager; what was not committed is removed.
    """

    _folders: dict[Path, Path] = field(default_factory=dict)
    _moves: dict[Path, Path] = field(default_factory=dict)
    _created: list[Path] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for folder in self._folders.values():
            shutil.rmtree(folder, ignore_errors=True)
        for folder in reversed(self._created):
            with contextlib.suppress(OSError):  # not empty: the outputs are in it
                folder.rmdir()

    def folder_for(self, destination: Path) -> Path:
        """Give the hidden directory that stands for the directory of a destination; made on first use.

        Raises:
            UserError: ``bad_output_path``: the directory cannot be made or written.
        """
        parent = destination.parent
        if parent not in self._folders:
            try:
                missing = [folder for folder in (parent, *parent.parents) if not folder.exists()]
                parent.mkdir(parents=True, exist_ok=True)
                self._created += reversed(missing)
                self._folders[parent] = Path(tempfile.mkdtemp(prefix=".ytk-prepare-", dir=parent))
            except OSError as err:
                msg = f"cannot write into {parent}: {err.strerror}"
                raise UserError(msg, code="bad_output_path", hint="Choose a directory that you can write to.") from err
        return self._folders[parent]

    def path_for(self, destination: Path) -> Path:
        """Give the path to write to for a destination; it is moved there by :meth:`commit`."""
        if destination.is_dir():
            msg = f"{destination} is a directory"
            raise UserError(msg, code="bad_output_path", hint="Give the path of a file.")
        staged = self.folder_for(destination) / destination.name
        self._moves[destination] = staged
        return staged

    def commit(self, stale: Sequence[Path] = ()) -> list[Path]:
        """Move every staged file to its destination, in the order of staging; then remove stale files.

        Returns:
            The destinations.
        """
        for destination, staged in self._moves.items():
            _sync(staged)
            staged.replace(destination)
        for path in stale:
            if path not in self._moves:
                path.unlink(missing_ok=True)
        return list(self._moves)


@contextlib.contextmanager
def disk_errors(paths: OutputPaths) -> Iterator[None]:
    """Turn "no space left" anywhere inside into a BoardError ``disk_full`` that names the output directory."""
    try:
        yield
    except OSError as err:
        translated = disk_error(err, paths.onnx)
        if translated is None:
            raise
        raise translated from err
    except RuntimeError as err:
        # torch's zip writer reports a failed write as RuntimeError; the disk is asked directly.
        if shutil.disk_usage(paths.folder).free > 1 << 16:
            raise
        full = disk_error(OSError(28, "no space left on the device"), paths.onnx)
        assert full is not None
        raise full from err


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
