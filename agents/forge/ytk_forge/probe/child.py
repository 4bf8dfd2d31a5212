"""The probe program: ``child.py ABI_DIR REQUEST ANSWER``. Runs bare (``python -I -S``) in the sandbox.

``ABI_DIR`` has ``ctypes_abi.py`` (:data:`ytk_core.abi.CTYPES_DIR`); the other two are JSON files.

Loads the library of the request, reads its table, and calls its shape function on the request's cases. The library's
code runs here and may do anything: the answer is a claim, and the parent compares it.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any


def main(abi_dir: str, request_path: str, answer_path: str) -> None:
    """Answer one request."""
    sys.path.insert(0, abi_dir)
    import ctypes_abi  # type: ignore[import-not-found]  # found only by a bare interpreter

    request: dict[str, Any] = json.loads(Path(request_path).read_text(encoding="utf-8"))
    answer: dict[str, Any]
    try:
        for library in request["preload"]:
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        table = ctypes_abi.load_table(Path(request["library"]))
        description = ctypes_abi.describe_table(table)
        shapes: list[Any] = []
        if description["shape"] and description["outputs"] == request["outputs"]:
            attrs = ctypes_abi.make_attrs(request["attributes"])
            shapes = [ctypes_abi.call_shape(table, case["variant"], case["inputs"], attrs) for case in request["cases"]]
        answer = {"table": description, "shapes": shapes}
    except (OSError, ValueError) as err:
        answer = {"problem": str(err)}
    Path(answer_path).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
