"""Who calls, and may they?"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import structlog

from ytk_controller.interceptors.around import Around, CallInfo, Context
from ytk_controller.interceptors.request_log import REQUEST_ID
from ytk_controller.live.desk import CALLER, Caller
from ytk_controller.tokens import Scope, Tokens
from ytk_core.channels import AUTHORIZATION
from ytk_core.errors import UserError

_BEARER = "bearer "

_BOTH = frozenset(Scope)
_CLIENT = frozenset({Scope.CLIENT})
_AGENT = frozenset({Scope.AGENT})

# What an agent may do besides AgentService: move artifacts, and handle the child jobs that it submits.
SCOPES_OF: dict[str, frozenset[Scope]] = {
    "JobService/SubmitJob": _BOTH,
    "JobService/GetJob": _BOTH,
    "JobService/WatchJob": _BOTH,
    "JobService/CancelJob": _BOTH,
    "JobService/ReadLog": _BOTH,
    "JobService/ListJobs": _CLIENT,
    "ArtifactService/FindMissing": _BOTH,
    "ArtifactService/GetWriteStatus": _BOTH,
    "ArtifactService/WriteArtifact": _BOTH,
    "ArtifactService/ReadArtifact": _BOTH,
    "AgentService/Connect": _AGENT,
    "AgentService/StartJob": _AGENT,
    "AgentService/AppendLog": _AGENT,
    "AgentService/ReportProgress": _AGENT,
    "AgentService/CommitJob": _AGENT,
    "FleetService/ListWorkers": _BOTH,
    "FleetService/DrainWorker": _CLIENT,
    "FleetService/GetServerInfo": _BOTH,
}
"""The one table of rights; a call that is not listed is refused."""

# Probes and tools ask these without a key; they tell nothing but that we run and what we speak.
OPEN_SERVICES = frozenset({"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"})


class AuthInterceptor(Around):
    """Lets calls through that present a known token of the right scope.

    Args:
        tokens: The valid tokens.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    @contextlib.asynccontextmanager
    async def around(self, call: CallInfo, context: Context) -> AsyncIterator[None]:
        """Check the call and bind its caller."""
        del context
        if call.method.split("/")[1] in OPEN_SERVICES:
            yield
            return
        caller = self._caller(call)
        bound = CALLER.set(caller)
        try:
            with structlog.contextvars.bound_contextvars(principal=caller.name):
                yield
        finally:
            # A stream that is thrown away may be closed in another context.
            with contextlib.suppress(ValueError):
                CALLER.reset(bound)

    def _caller(self, call: CallInfo) -> Caller:
        header = call.metadata.get(AUTHORIZATION, "")
        if not isinstance(header, str) or not header.lower().startswith(_BEARER):
            raise UserError(
                "no API key was presented",
                code="unauthenticated",
                hint="Set YTK_API_KEY or YTK_API_KEY_FILE; `ytk up` prints where its key file is.",
            )
        record = self._tokens.find(header[len(_BEARER) :].strip())
        if record is None:
            raise UserError(
                "the API key is not known here, or has expired",
                code="unauthenticated",
                hint="Check YTK_API_KEY, YTK_API_KEY_FILE and `ytk config show`: the key may be another controller's.",
            )
        if record.scope not in SCOPES_OF.get(f"{call.service}/{call.rpc}", frozenset()):
            raise UserError(
                f"the key {record.name} has the scope {record.scope}, which may not call {call.rpc}",
                code="permission_denied",
                hint="Use a key made for this purpose.",
            )
        return Caller(name=record.name, scope=record.scope, request_id=REQUEST_ID.get(""))
