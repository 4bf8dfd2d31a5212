"""``ytk embedded capture``: put a failing piece of a model into a file that can be pasted into an issue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ytk_client.cli.output import JSON, format_option, note, print_fields, print_json, warn
from ytk_core.errors import ExitCode, UserError

if TYPE_CHECKING:
    from ytk_client.repro.format import Loaded
    from ytk_client.repro.replay import Replay


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option(
    "-m",
    "--module",
    "module_path",
    help="Module of the model.py to capture, as in the module table; '' is the whole model.",
)
@click.option("--call", type=click.IntRange(0), default=0, show_default=True, help="Which call of the module.")
@click.option("--site", type=click.IntRange(0), default=0, show_default=True, help="Which site of a carved region.")
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Of torch's random numbers while the model is made."
)
@click.option(
    "-o",
    "--output-file",
    "out",
    required=True,
    type=click.Path(path_type=Path),
    help="The repro to write: a name ending in .zip, or a directory.",
)
@click.option("--no-check", is_flag=True, help="Do not replay it once after writing.")
@click.option("--export", is_flag=True, help="Record too whether torch's ONNX exporter takes it, and what it says.")
@format_option("--format")
@click.pass_context
def capture(
    context: click.Context,
    source: Path,
    module_path: str | None,
    call: int,
    site: int,
    seed: int,
    out: Path,
    no_check: bool,
    export: bool,
    output: str,
) -> None:
    """Put one carved region or one module into a small file that others can replay.

    SOURCE is plugin_candidates/<Name> as `prepare` wrote it (needs no torch), or a model.py with --module, which is run here.
    The repro holds inputs, expected outputs (or the exception), attributes, versions, source text, and of a module its own
    parameters: nothing pickled, no other weights. Exit code 1 if replaying it at once does not give the same.
    """
    import msgspec

    from ytk_client.repro.format import Kind, write_repro

    if export and no_check:
        raise click.UsageError("--export tries the exporter in the check that --no-check leaves out.")
    loaded = _captured(source, module_path, call=call, site=site, seed=seed)
    write_repro(out, loaded)
    note(f"  wrote      {out}")
    checked = None if no_check else _checked(out, needs_torch=export or loaded.repro.kind is Kind.MODULE, export=export)
    if export and checked is not None:
        header = msgspec.structs.replace(loaded.repro, exports=checked.exports, export_error=checked.export_error)
        loaded = msgspec.structs.replace(loaded, repro=header)
        write_repro(out, loaded)
    if output == JSON:
        print_json({"file": str(out), "repro": loaded.repro, "replay": checked})
    else:
        _print(out, loaded, checked)
    if checked is not None and not checked.ok:
        context.exit(int(ExitCode.VERDICT))


def _captured(source: Path, module_path: str | None, *, call: int, site: int, seed: int) -> Loaded:
    if module_path is not None:
        from ytk_client.repro.capture_module import capture_module

        return capture_module(source, module_path, call=call, seed=seed)
    if source.suffix == ".py" and not source.name.endswith(".reference.py"):
        raise UserError(
            f"{source}: which module?",
            code="no_module",
            hint="Give --module PATH, for example --module backbone.0; --module '' captures the whole model.",
        )
    from ytk_client.repro.capture_region import capture_region

    return capture_region(source, site=site)


def _checked(out: Path, *, needs_torch: bool, export: bool) -> Replay | None:
    """Replay once: a repro that does not reproduce here will not anywhere."""
    import importlib.util

    if importlib.util.find_spec("torch") is None and not needs_torch:
        warn("not replayed: torch is not installed here")
        return None
    from ytk_client.repro.replay import replay

    # The user's own code, which prepare runs without a sandbox too.
    return replay(out, sandbox="optional", export=export, log=lambda _text: None)


def _print(out: Path, loaded: Loaded, checked: Replay | None) -> None:
    repro = loaded.repro
    size = sum(array.nbytes for array in loaded.arrays.values())
    state = sum(loaded.arrays[f"state/{tensor.name}"].nbytes for tensor in repro.state)
    verdict = (
        "not replayed" if checked is None else "it replays" if checked.ok else f"it does NOT replay: {why_not(checked)}"
    )
    print_fields(
        [
            ("repro", out),
            ("kind", repro.kind),
            ("name", repro.name or "(top)"),
            ("inputs", len(repro.inputs)),
            (
                "expected",
                f"{repro.raised.type}: {repro.raised.message}" if repro.raised else f"{len(repro.outputs)} outputs",
            ),
            ("bytes", f"{size}, of which parameters {state}"),
            ("sources", ", ".join(loaded.sources)),
            *([("ONNX export", _export_text(loaded))] if repro.exports is not None else []),
            ("check", verdict),
        ]
    )


def _export_text(loaded: Loaded) -> str:
    error = loaded.repro.export_error
    return "works" if error is None else f"{error.type}: {error.message.splitlines()[0][:300] if error.message else ''}"


def why_not(replay: Replay) -> str:
    """Give in one line why a replay is not what was captured."""
    if replay.raised is not None and replay.expected_raise is None:
        return (
            f"it raised {replay.raised.type}: {replay.raised.message.splitlines()[0] if replay.raised.message else ''}"
        )
    if replay.expected_raise is not None:
        got = replay.raised.type if replay.raised else "outputs"
        return f"{replay.expected_raise.type} was expected, it gave {got}"
    if replay.note:
        return replay.note
    if replay.expected_exports is not None and replay.exports is not None and all(each.ok for each in replay.outputs):
        error = replay.export_error
        return "the ONNX export works now" if error is None else f"the ONNX export gives {error.type}"
    bad = next((output for output in replay.outputs if not output.ok), None)
    if bad is None:
        return ""
    return f"{bad.name}: {bad.note or f'largest difference {bad.max_abs:.3g} (limit: {bad.tolerance})'}"
