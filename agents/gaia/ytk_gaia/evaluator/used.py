"""Was it the kernel that made the outputs? Controls that an output made in another way does not pass."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import PurePath

# What a compiler links into a kernel: the language's own libraries. Forge's audit allows the same.
_OWN = re.compile(
    r"^(ld-linux|libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s|libgomp|libmvec|libatomic)[-.].*|^ld-linux.*"
)


def foreign(mapped: Collection[str], always: Collection[str]) -> list[str]:
    """Give the libraries that a candidate brought into its process and that are not its own code.

    Args:
        mapped: Files in the memory of the candidate's process.
        always: Those in the memory of an empty kernel's process.
    """
    found = {name for name in mapped if name not in always and PurePath(name).name != "kernel.so"}
    return sorted(name for name in found if ".so" in name and not _OWN.match(PurePath(name).name))
