"""What a CPU kernel may not ask of the kernel of the operating system: filters that its process puts on itself (seccomp).

A sandbox keeps a process from others. It does not keep a kernel from lying about itself: from letting another process of its own
do the work, whose time nobody counts; from catching the fault that a touch beside a buffer is; from pinning or renicing. A compute
kernel needs none of these calls. The filters are plain data, made here by the judge; the candidate's process only installs them.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Iterable, Mapping

_LOAD_WORD, _EQUAL, _ANY_BIT, _GIVE = 0x20, 0x15, 0x45, 0x06
_NUMBER, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in ``struct seccomp_data``; of the argument the low half, which is first on little-endian machines."""
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_CLONE_THREAD = 0x00010000
_SIGBUS, _SIGSEGV = 7, 11
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_ANOTHER_PROCESS = {
    "x86_64": {"fork": 57, "vfork": 58, "execve": 59, "execveat": 322},
    "aarch64": {"execve": 221, "execveat": 281},
}
_ANOTHERS_MEMORY = {
    "x86_64": {
        "ptrace": 101,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "userfaultfd": 323,
        "pidfd_getfd": 438,
    },
    "aarch64": {
        "ptrace": 117,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "userfaultfd": 282,
        "pidfd_getfd": 438,
    },
}
_PRIORITY = {
    "x86_64": {"setpriority": 141, "sched_setparam": 142, "sched_setscheduler": 144, "sched_setaffinity": 203, "sched_setattr": 314},
    "aarch64": {"sched_setparam": 118, "sched_setscheduler": 119, "sched_setaffinity": 122, "setpriority": 140, "sched_setattr": 274},
}  # fmt: skip
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_SIGACTION = {"x86_64": 13, "aarch64": 134}


def _step(code: int, when_true: int, when_false: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, when_true, when_false, value)


def _answer(numbers: Iterable[int], answer: int) -> bytes:
    return b"".join(_step(_EQUAL, 0, 1, number) + _step(_GIVE, 0, 0, answer) for number in sorted(numbers))


def _program(machine: str, body: bytes) -> bytes:
    """Put a body behind the check of the machine: numbers of calls are those of one machine only; others end the process."""
    head = _step(_LOAD_WORD, 0, 0, _MACHINE) + _step(_EQUAL, 1, 0, _AUDIT[machine]) + _step(_GIVE, 0, 0, _KILL)
    return head + _step(_LOAD_WORD, 0, 0, _NUMBER) + body + _step(_GIVE, 0, 0, _ALLOW)


def _values(table: Mapping[str, Mapping[str, int]], machine: str) -> Iterable[int]:
    return table[machine].values()


def before_loading(machine: str) -> bytes:
    """Give the filter that holds from before the candidate's constructors run: no other process, no other's memory.

    Threads are allowed. ``clone3`` hides its flags in memory, so it is answered as on an old kernel, and the C library uses ``clone``.
    A change of affinity or priority is refused with EPERM rather than punished: runtimes try it in good faith.
    """
    thread_only = (
        _step(_EQUAL, 0, 4, _CLONE[machine])
        + _step(_LOAD_WORD, 0, 0, _FIRST_ARGUMENT)
        + _step(_ANY_BIT, 1, 0, _CLONE_THREAD)
        + _step(_GIVE, 0, 0, _KILL)
        + _step(_GIVE, 0, 0, _ALLOW)
    )
    return _program(
        machine,
        _answer([*_values(_ANOTHER_PROCESS, machine), *_values(_ANOTHERS_MEMORY, machine)], _KILL)
        + _answer(_values(_PRIORITY, machine), _ERROR | _EPERM)
        + _answer([_CLONE3], _ERROR | _ENOSYS)
        + thread_only,
    )


def before_calling(machine: str) -> bytes:
    """Give the filter that holds from before the first call: the judge's handlers of memory faults stay."""
    faults = b"".join(_step(_EQUAL, 0, 1, number) + _step(_GIVE, 0, 0, _KILL) for number in (_SIGBUS, _SIGSEGV))
    return _program(
        machine,
        _step(_EQUAL, 0, len(faults) // 8 + 1, _SIGACTION[machine]) + _step(_LOAD_WORD, 0, 0, _FIRST_ARGUMENT) + faults,
    )


def filters(machine: str = "") -> str:
    """Give both filters as the argument of the candidate's process: hexadecimal, with a colon between; ``-`` where there are none.

    Args:
        machine: As ``platform.machine()`` says; empty: this one.
    """
    machine = machine or platform.machine()
    if machine not in _AUDIT:
        return "-"
    return f"{before_loading(machine).hex()}:{before_calling(machine).hex()}"
