"""A stand-in for a daemon of the stack, run as ``python -m fakes.up_part NAME DIRECTORY``.

It says ready and waits for SIGTERM. Files in DIRECTORY change it: ``NAME.refuse`` ends it before it is ready,
``NAME.silent`` keeps it from being ready, ``NAME.deaf`` makes it ignore SIGTERM, ``NAME.child`` makes it start a child of
its own. It leaves its process ids in ``NAME.pid``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path


def main() -> None:
    name, directory = sys.argv[1], Path(sys.argv[2])

    def has(word: str) -> bool:
        return (directory / f"{name}.{word}").exists()

    pids = [str(os.getpid())]
    if has("child"):
        pids.append(str(subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]).pid))
    (directory / f"{name}.pid").write_text(" ".join(pids))
    if has("refuse"):
        sys.exit(f"{name} refuses to start")
    print("a line that is not JSON", flush=True)
    if not has("silent"):
        print(json.dumps({"event": "ready", "address": "127.0.0.1:4242", "worker_id": name}), flush=True)
    if has("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        while True:
            signal.pause()
    signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    main()
