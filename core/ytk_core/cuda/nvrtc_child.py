"""The device compiler's process: ``nvrtc_child.py REQUEST ANSWER`` (both JSON files). Runs bare (``python -I -S``) in the sandbox.

NVRTC is a library, and the text that it parses is hostile: it is loaded here and nowhere else.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any


def main(request_path: str, answer_path: str) -> None:
    """Answer one request: compile ``source`` with ``options`` into the file ``cubin``."""
    request: dict[str, Any] = json.loads(Path(request_path).read_text(encoding="utf-8"))
    try:
        answer = _compile(request)
    except OSError as err:
        answer = {"version": "", "status": -1, "error": str(err), "log": ""}
    Path(answer_path).write_text(json.dumps(answer), encoding="utf-8")


def _compile(request: dict[str, Any]) -> dict[str, Any]:
    for library in request["preload"]:
        # NVRTC looks for its built-in functions by bare name: it finds the library that is loaded already.
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    nvrtc = ctypes.CDLL(request["library"])
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    program = ctypes.c_void_p()
    source = Path(request["source"]).read_bytes()
    options = [option.encode() for option in request["options"]]
    status = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernel.cu", 0, None, None)
    if status == 0:
        status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    log = _fetch(nvrtc, program, "ProgramLog").rstrip(b"\0") if program else b""
    if status == 0:
        Path(request["cubin"]).write_bytes(_fetch(nvrtc, program, "CUBIN"))
    return {
        "version": f"{major.value}.{minor.value}",
        "status": status,
        "error": nvrtc.nvrtcGetErrorString(status).decode() if status else "",
        "log": log.decode("utf-8", "replace"),
    }


def _fetch(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(max(1, size.value))
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw[: size.value]


if __name__ == "__main__":
    main(*sys.argv[1:])
