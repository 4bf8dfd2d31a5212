#!/usr/bin/env python3
"""The main job on this machine: two models with operators that TensorRT 8.6 refuses become verified OpenVINO engines.

It starts the whole stack with `ytk up` on a home of its own (.demo/), runs each command as a user would type it, and ends
with the verify tables. Exit code 0 only if every step passed and the engines' outputs match torch. The stack is stopped in
every case. A second run finds its results in the cache.

    python scripts/demo.py [--fresh]     # --fresh: forget what earlier runs left
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
DEMO = Path(".demo")
EXAMPLES = ("fold", "volume_lifter")
YTK = Path(sys.executable).parent / "ytk"


class StepFailedError(Exception):
    """A command of the demo ended with another code than 0."""


class Shell:
    """Runs ``ytk`` commands, shows each before it runs, and keeps their times."""

    def __init__(self) -> None:
        self.times: list[tuple[str, float]] = []
        keep = {name: value for name, value in os.environ.items() if not name.startswith("YTK_")}
        # Nothing of this account's own settings may leak in.
        self._env = keep | {"YTK_HOME": str(ROOT / DEMO / "home"), "YTK_CONFIG": str(ROOT / DEMO / "no-config.toml")}

    def ytk(self, *words: object, label: str = "") -> None:
        """Run one command and fail if it fails."""
        code = self.try_ytk(*words, label=label)
        if code != 0:
            raise StepFailedError(f"`{shown(words)}` ended with exit code {code}")

    def try_ytk(self, *words: object, label: str = "") -> int:
        """Run one command and give its exit code."""
        say(f"\n$ {shown(words)}")
        start = time.monotonic()
        code = subprocess.run([str(YTK), *map(str, words)], cwd=ROOT, env=self._env, check=False).returncode
        self.times.append((label or " ".join(map(str, words[:2])), time.monotonic() - start))
        return code

    def ask(self, *words: str) -> object:
        """Run one command quietly and give its JSON."""
        done = subprocess.run(
            [str(YTK), *words, "-o", "json"], cwd=ROOT, env=self._env, stdout=subprocess.PIPE, check=True
        )
        return json.loads(done.stdout)


def say(text: str) -> None:
    print(text, flush=True)


def shown(words: tuple[object, ...]) -> str:
    """Give a command line as one would type it, a line per two or three options."""
    text = "ytk"
    width = 0
    for word in map(str, words):
        if width + len(word) > 100 and word.startswith("-"):
            text += " \\\n     "
            width = 0
        text += f" {shlex.quote(word)}"
        width += len(word) + 1
    return text


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    arguments.add_argument("--fresh", action="store_true", help="forget what earlier runs left")
    options = arguments.parse_args()
    os.chdir(ROOT)
    if not YTK.exists():
        say(f"{YTK} is missing: run `make demo`, or install this repository with `pip install -e '.[all]'`")
        return 2
    signal.signal(signal.SIGTERM, interrupted)
    shell = Shell()
    start = time.monotonic()
    (DEMO / "home").mkdir(parents=True, exist_ok=True)
    lock = (DEMO / "lock").open("a")  # held until this process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"another demo is running in {ROOT / DEMO}")
        return 2
    try:
        stop_leftovers(shell)
        if options.fresh:
            shutil.rmtree(DEMO / "out", ignore_errors=True)
            shutil.rmtree(DEMO / "home")
            (DEMO / "home").mkdir()
        say("--- The stack: controller, Kronos (OpenVINO), Gaia (generator, CPU evaluator), Forge")
        say(f"\n$ export YTK_HOME=$PWD/{DEMO / 'home'}")
        shell.ytk("up", "--detach")
        ok = run(shell)
    except StepFailedError as error:
        say(f"\nFAILED: {error}")
        say(f"Logs of the stack: {DEMO / 'home/up/logs'}")
        return 1
    except KeyboardInterrupt:
        say("\ninterrupted")
        return 130
    finally:
        # Ctrl-C again must not leave daemons behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        shell.try_ytk("up", "--stop")
    summary(shell, time.monotonic() - start, ok=ok)
    return 0 if ok else 1


def interrupted(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def stop_leftovers(shell: Shell) -> None:
    """Stop the stack of a demo that was killed, which would answer with old code."""
    if (DEMO / "home/up/status.json").exists():
        shell.try_ytk("up", "--stop")


def run(shell: Shell) -> bool:
    """Take both examples through the main job; give whether both engines compute what torch computed."""
    shell.ytk("embedded", "workers")
    shell.ytk("eval", "workers")
    arch = best_arch(shell)
    say(f"\n$ export ARCH={arch}")
    for example in EXAMPLES:
        build(shell, example, arch)
    say("\n--- Verify: times, and outputs against torch")
    codes = [
        shell.try_ytk(
            "embedded", "verify", out / "model.reference.npz", out / f"{example}.tgz", label=f"verify {example}"
        )
        for example in EXAMPLES
        for out in [output_directory(example)]
    ]
    return not any(codes)


def best_arch(shell: Shell) -> str:
    """Give what a user would copy from `ytk embedded workers`: the first arch spec of the first worker."""
    workers = shell.ask("embedded", "workers")
    assert isinstance(workers, list)
    specs = [spec for worker in workers for spec in worker["description"]["arch_specs"]]
    if not specs:
        raise StepFailedError("no worker that builds engines is connected")
    return str(specs[0])


def output_directory(example: str) -> Path:
    return DEMO / "out" / example


def build(shell: Shell, example: str, arch: str) -> None:
    """Prepare one example, give each unsupported operator a plugin, and build the engine."""
    out = output_directory(example)
    out.mkdir(parents=True, exist_ok=True)
    say(f"\n--- {example}: export, and read the plugin table")
    shell.ytk(
        *("embedded", "prepare", f"examples/{example}/model.py"),
        *("--onnx-out", out / "model.onnx"),
        *("--npz-out", out / "model.npz"),
        *("--reference-out", out / "model.reference.npz"),
        label=f"prepare {example}",
    )
    rows = json.loads((out / "plugins.json").read_text(encoding="utf-8"))["rows"]
    blocking = [row for row in rows if not row["has_plugin"]]
    if not blocking:
        raise StepFailedError(f"{example} should have an operator without a plugin, {out / 'plugins.json'} lists none")
    plugins: list[object] = []
    for row in blocking:
        name = row["name"]
        say(f"\n--- {example}: {row['placeholder']} has no plugin: generate its kernel, build the plugin")
        source = out / "sources" / f"{name}.module_source.py"
        shell.ytk(
            *("kernelgen", "compile", "-r", out / row["gaia_input"], "-g", "cpu"),
            *("--config", "deployment_target=cpu"),
            *("-o", source, "--report", out / "sources" / f"{name}.report.json"),
            label=f"kernelgen compile {name}",
        )
        library = out / "plugins" / f"{name}.so"
        shell.ytk(
            *("embedded", "build-plugin", "-a", arch, "--plugin-name", name, "-s", source, "-o", library),
            label=f"build-plugin {name}",
        )
        plugins += ["--custom-plugin", library]
    say(f"\n--- {example}: build the engine with {len(blocking)} plugin(s)")
    shell.ytk(
        *("embedded", "compile", "-a", arch, "-p", "fp32"),
        *("--onnx", out / "model.onnx", "--npz", out / "model.npz", "-o", out / f"{example}.tgz"),
        *plugins,
        label=f"compile {example}",
    )


def summary(shell: Shell, seconds: float, *, ok: bool) -> None:
    say("\n--- Seconds per step")
    for label, taken in shell.times:
        say(f"  {taken:7.1f}  {label}")
    say(f"  {seconds:7.1f}  in all")
    if ok:
        say("\nPASSED: every step worked, and both engines compute what torch computed.")
    else:
        say("\nFAILED: an engine's output differs from torch's; the accuracy tables above say which.")


if __name__ == "__main__":
    sys.exit(main())
