from __future__ import annotations

import re
from pathlib import Path

import grpc
import grpc.aio
import pytest

import ytk_core
from ytk_core import errors, rpc_errors
from ytk_core.errors import FailureClass, RemoteError, YtkError


def raised(status: rpc_errors.Status) -> grpc.RpcError:
    return grpc.aio.AioRpcError(
        status.code, grpc.aio.Metadata(), grpc.aio.Metadata(*status.trailing), details=status.details
    )


ALL = [errors.UserError, errors.CandidateError, errors.BoardError, errors.ToolkitError]


@pytest.mark.parametrize("cls", ALL)
def test_all_four_fields_travel(cls: type[YtkError]) -> None:
    back = rpc_errors.from_rpc_error(
        raised(rpc_errors.to_status(cls("größer als 5", code="some_code", hint="do this")))
    )
    assert isinstance(back, RemoteError)
    assert (back.failure_class, back.code, back.message, back.hint) == (
        cls.failure_class,
        "some_code",
        "größer als 5",
        "do this",
    )


def test_an_offset_travels() -> None:
    err = rpc_errors.OffsetError("stands at 7", code="write_offset", offset=7)
    status = rpc_errors.to_status(err)
    assert status.code is grpc.StatusCode.OUT_OF_RANGE
    back = rpc_errors.from_rpc_error(raised(status))
    assert isinstance(back, rpc_errors.OffsetError)
    assert back.offset == 7


def test_every_class_and_default_code_has_a_status() -> None:
    assert set(rpc_errors.STATUS_OF_CLASS) == set(FailureClass)
    for cls in (*ALL, errors.FormatError, errors.NotAvailableError):
        if cls is not errors.CandidateError:  # a candidate's failure is a job's outcome, never a call's
            assert cls.default_code in rpc_errors.STATUS_OF_CODE


def test_codes_raised_by_the_runtime_are_in_the_table() -> None:
    """Those of task and sandbox failures stay within a job's Failure."""
    source = "".join((Path(ytk_core.__file__).parent / name).read_text() for name in ("rpc_errors.py", "convert.py"))
    codes = set(re.findall(r'code="([a-z_]+)"', source))
    assert len(codes) > 4
    assert codes <= set(rpc_errors.STATUS_OF_CODE)


def test_long_texts_stay_below_the_metadata_limit() -> None:
    status = rpc_errors.to_status(YtkError("ä" * 100_000, hint="ö" * 100_000))
    assert len(status.details.encode()) + len(status.trailing[0][1]) < 8192


@pytest.mark.parametrize(
    ("status", "code", "cls"),
    [
        (grpc.StatusCode.UNAVAILABLE, "unavailable", FailureClass.BOARDS),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "deadline", FailureClass.BOARDS),
        (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated", FailureClass.YOURS),
        (grpc.StatusCode.PERMISSION_DENIED, "permission_denied", FailureClass.YOURS),
        (grpc.StatusCode.UNIMPLEMENTED, "protocol_version", FailureClass.YOURS),
        (grpc.StatusCode.UNKNOWN, "internal", FailureClass.OURS),
    ],
)
def test_statuses_of_grpc_itself(status: grpc.StatusCode, code: str, cls: FailureClass) -> None:
    err = rpc_errors.from_rpc_error(raised(rpc_errors.Status(status, "connection refused", ())), peer="host:1")
    assert (err.code, err.failure_class) == (code, cls)
    assert "host:1" in err.message
    assert "connection refused" in err.message


def test_garbage_metadata_falls_back_to_the_status() -> None:
    status = rpc_errors.Status(grpc.StatusCode.UNAVAILABLE, "gone", ((rpc_errors.METADATA_KEY, b"\xc1garbage"),))
    assert rpc_errors.from_rpc_error(raised(status)).code == "unavailable"
