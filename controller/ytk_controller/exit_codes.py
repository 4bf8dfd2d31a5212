"""Exit codes of ``ytk-controller``; 10 and up are its own."""

from __future__ import annotations

import enum

from ytk_core.errors import YtkError


class ControllerExit(enum.IntEnum):
    """How the daemon ended; ``HELP`` has one sentence for each."""

    OK = 0
    USAGE = 2
    YOURS = 3
    BOARDS = 5
    OURS = 6
    STATE_DIR = 10
    DATABASE_LOCKED = 11
    DATABASE = 12
    ADDRESS = 13
    TOKEN = 14


HELP: dict[ControllerExit, str] = {
    ControllerExit.OK: "It was told to stop and did.",
    ControllerExit.USAGE: "The command line is wrong.",
    ControllerExit.YOURS: "A setting is wrong.",
    ControllerExit.BOARDS: "Infrastructure failed: a disk, a network.",
    ControllerExit.OURS: "A bug of the toolkit; report it with the log.",
    ControllerExit.STATE_DIR: "The state directory cannot be used.",
    ControllerExit.DATABASE_LOCKED: "Another controller runs on this SQLite file.",
    ControllerExit.DATABASE: "The database cannot be opened.",
    ControllerExit.ADDRESS: "The address cannot be listened on.",
    ControllerExit.TOKEN: "A bootstrap token is malformed or cannot be read.",
}

_OF_CODE: dict[str, ControllerExit] = {
    "state_dir": ControllerExit.STATE_DIR,
    "database_locked": ControllerExit.DATABASE_LOCKED,
    "database": ControllerExit.DATABASE,
    "database_url": ControllerExit.DATABASE,
    "address": ControllerExit.ADDRESS,
    "bad_token": ControllerExit.TOKEN,
}


def exit_code_of(err: YtkError) -> ControllerExit:
    """Give the exit code for an error that ended the daemon."""
    return _OF_CODE.get(err.code) or ControllerExit(err.exit_code)
