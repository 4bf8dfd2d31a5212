"""The real plugin registry's process: ``registry_child.py REQUEST ANSWER`` (both JSON files), run isolated in the sandbox.

Loads a plugin library into the registry of tensorrt-lean, which needs no GPU for it, and lists what is new there.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any


def main(request_path: str, answer_path: str) -> None:
    """Answer one request."""
    request: dict[str, Any] = json.loads(Path(request_path).read_text(encoding="utf-8"))
    ctypes.CDLL(request["driver"], mode=ctypes.RTLD_GLOBAL)
    import tensorrt_lean_bindings as trt

    logger = trt.Logger(trt.Logger.ERROR)
    registry = trt.get_plugin_registry()
    known = {_identity(creator) for creator in registry.all_creators}
    registry.load_library(request["library"])
    namespace, name, version = request["wanted"]
    found = [
        [*_identity(creator), [[field.name, int(field.type)] for field in creator.field_names]]
        for creator in registry.all_creators
        if _identity(creator) not in known
    ]
    answer = {
        "creators": found,
        "found": registry.get_creator(name, version, namespace) is not None,
        # The lookup that TensorRT would do for another plugin: it must not find this one.
        "strangers": [
            registry.get_creator(*other) is not None
            for other in (
                (name, version, namespace + "x"),
                (name, version + "x", namespace),
                (name + "x", version, namespace),
            )
        ],
    }
    Path(answer_path).write_text(json.dumps(answer), encoding="utf-8")
    sys.stdout.flush()
    del logger
    # No orderly end: the registry takes creators apart whose library may be gone by then.
    os._exit(0)


def _identity(creator: Any) -> tuple[str, str, str]:
    return creator.plugin_namespace, creator.name, creator.plugin_version


if __name__ == "__main__":
    main(*sys.argv[1:])
