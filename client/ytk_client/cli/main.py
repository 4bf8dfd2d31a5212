"""The entry point: runs a command, and turns how it ended into text on stderr and an exit code."""

from __future__ import annotations

import errno
import sys
from typing import TYPE_CHECKING

import click

from ytk_client.cli.lazy import Invocation, LazyGroup
from ytk_client.detached import Detached
from ytk_core.errors import BoardError, ExitCode, NotAvailableError, ToolkitError, UserError, YtkError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

HELP = """Take a PyTorch model to an embedded target.

\b
  ytk up                  start everything on this machine
  ytk embedded prepare    export a model, list what has no plugin
  ytk kernelgen compile   generate a kernel for each such row
  ytk embedded build-plugin | compile | verify
"""


def make_cli() -> LazyGroup:
    """Build the root group with ``--version``."""
    cli = LazyGroup((), help_text=HELP)
    cli.params.append(
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_print_version,
            help="Print the version.",
        )
    )
    cli.context_settings = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
    return cli


def _print_version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        import importlib.metadata

        click.echo(f"ytk {importlib.metadata.version('yasp-toolkit')}")
        context.exit()


def _say(text: str, colour: str | None = None) -> None:
    click.secho(text, err=True, fg=colour)


def _from_os_error(error: OSError) -> YtkError:
    """Give the error of ours for one of the operating system that nobody turned into a better one."""
    where = f": {error.filename}" if error.filename else ""
    text = f"{error.strerror or error}{where}"
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return BoardError(text, code="disk_full", hint="Free some space and run the command again.")
    return UserError(text, code="file_error", hint="Check the path and its permissions.")


# Modules that extras install and commands import; anything else that is missing is a broken installation.
_EXTRA_OF_MODULE = {"torch": "torch", "onnxscript": "torch", "openvino": "kronos"}


def _from_missing_module(error: ModuleNotFoundError) -> YtkError:
    module = (error.name or "").partition(".")[0]
    extra = _EXTRA_OF_MODULE.get(module)
    if extra is None:
        return ToolkitError(
            str(error), hint="The installation is incomplete: pip install --force-reinstall yasp-toolkit"
        )
    return NotAvailableError(
        f"this command needs {module}, which is not installed",
        code="missing_dependency",
        hint=f"{sys.executable} -m pip install 'yasp-toolkit[{extra}]'",
    )


def _report(error: YtkError) -> int:
    _say(f"error[{error.code}]: {error.message}", "red")
    if error.hint:
        _say(f"  hint: {error.hint}")
    return int(error.exit_code)


def _report_detached(detached: Detached) -> int:
    mine = f" --submission {detached.submission_id}" if detached.submission_id else ""
    _say(f"\nDetached; job {detached.job_id} goes on.")
    _say(f"  follow it: ytk jobs attach {detached.job_id}")
    _say(f"  cancel it: ytk jobs cancel {detached.job_id}{mine}")
    _say("  its result: run the same command again, it joins the job instead of starting another")
    return int(ExitCode.DETACHED)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and give the exit code (:class:`ytk_core.errors.ExitCode`).

    Args:
        arguments: Words after ``ytk``; None takes them from ``sys.argv``.
    """
    Invocation.debug = False
    try:
        code = make_cli().main(
            args=None if arguments is None else list(arguments), prog_name="ytk", standalone_mode=False
        )
    except click.ClickException as error:
        error.show()
        return int(ExitCode.USAGE)
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted")
        return int(ExitCode.DETACHED)
    except Detached as detached:
        return _report_detached(detached)
    except YtkError as error:
        _traceback_if_asked()
        return _report(error)
    except OSError as error:
        _traceback_if_asked()
        return _report(_from_os_error(error))
    except ModuleNotFoundError as error:
        _traceback_if_asked()
        return _report(_from_missing_module(error))
    except Exception as error:  # noqa: BLE001 - the last resort: no traceback reaches a user who did not ask for one
        _traceback_if_asked()
        text = f"{type(error).__name__}: {error}"
        return _report(ToolkitError(text, hint="This is a bug: run again with --debug and report what it prints."))
    return code if isinstance(code, int) else int(ExitCode.OK)


def _traceback_if_asked() -> None:
    if Invocation.debug:
        import traceback

        traceback.print_exc()


def main() -> NoReturn:
    """Run ``ytk`` as a process."""
    sys.exit(run())


if __name__ == "__main__":
    main()
