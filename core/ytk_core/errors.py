"""The error classes of the distribution.

::

    YtkError                 code, message, hint, failure_class
    +-- UserError            yours: the input is wrong
    |   +-- FormatError      yours: a file is not what it should be
    |   +-- NotAvailableError     yours: something optional is not installed or not running
    +-- CandidateError       candidate's: a generated kernel is wrong
    +-- BoardError           board's: infrastructure; the only class that is retried
    +-- ToolkitError         ours: a bug of the toolkit

An error says what happened, with which value, and what to do next.
"""

from __future__ import annotations

import enum


class FailureClass(enum.StrEnum):
    """Who has to act."""

    YOURS = "yours"
    CANDIDATES = "candidate's"
    BOARDS = "board's"
    OURS = "ours"


class ExitCode(enum.IntEnum):
    """Exit codes of every ``ytk`` command; ``HELP`` has one sentence for each."""

    OK = 0
    VERDICT = 1
    USAGE = 2
    YOURS = 3
    CANDIDATES = 4
    BOARDS = 5
    OURS = 6
    DETACHED = 130


EXIT_CODE_HELP: dict[ExitCode, str] = {
    ExitCode.OK: "Everything asked for was done.",
    ExitCode.VERDICT: "The command worked and its verdict is negative (an output differs, a file has findings).",
    ExitCode.USAGE: "The command line is wrong.",
    ExitCode.YOURS: "An input is wrong: a model, a file, a name, a key.",
    ExitCode.CANDIDATES: "A generated kernel is wrong.",
    ExitCode.BOARDS: "Infrastructure failed: a board, the network, a disk, no controller.",
    ExitCode.OURS: "A bug of the toolkit; run again with --debug and report it.",
    ExitCode.DETACHED: "Interrupted: the job goes on, `ytk jobs attach` follows it.",
}

EXIT_CODE_OF: dict[FailureClass, ExitCode] = {
    FailureClass.YOURS: ExitCode.YOURS,
    FailureClass.CANDIDATES: ExitCode.CANDIDATES,
    FailureClass.BOARDS: ExitCode.BOARDS,
    FailureClass.OURS: ExitCode.OURS,
}


class YtkError(Exception):
    """Base of all errors of the distribution.

    Args:
        message: What happened, with the value.
        code: Stable machine-readable word; clients branch on it, never on the message.
        hint: What to do next, as a sentence or a command.
    """

    failure_class = FailureClass.OURS
    default_code = "internal"

    def __init__(self, message: str, *, code: str | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.hint = hint

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a command that ends with this error."""
        return EXIT_CODE_OF[self.failure_class]


class UserError(YtkError):
    """The input is wrong; the submitter acts."""

    failure_class = FailureClass.YOURS
    default_code = "invalid_input"


class FormatError(UserError):
    """A file is not what it should be; the message names the file and the place in it."""

    default_code = "invalid_format"


class NotAvailableError(UserError):
    """Something optional is missing: an extra that is not installed, a service that does not run."""

    default_code = "not_available"


class CandidateError(YtkError):
    """A generated kernel is wrong: a result of the search, not an incident."""

    failure_class = FailureClass.CANDIDATES
    default_code = "candidate_failed"


class BoardError(YtkError):
    """Infrastructure failed; the same job may work elsewhere."""

    failure_class = FailureClass.BOARDS
    default_code = "infrastructure"


class ToolkitError(YtkError):
    """A bug of the toolkit."""

    failure_class = FailureClass.OURS
    default_code = "internal"


class RemoteError(YtkError):
    """A failure that a controller or an agent reported, with its own class."""

    def __init__(self, message: str, *, code: str, hint: str = "", failure_class: FailureClass) -> None:
        super().__init__(message, code=code, hint=hint)
        self.failure_class = failure_class
