"""The one factory of channels and of server options, so that both ends agree on keepalive and limits.

One long-lived channel per peer. aio channels stay on the loop that made them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import grpc
import grpc.aio

AUTHORIZATION = "authorization"

Options = list[tuple[str, int | str]]

# Middleboxes forget idle connections after a minute or more, and a peer that lost power says nothing: ping every 20 s,
# give up after 10 s. HTTP/2 pings are hop by hop, so the agents' own heartbeats exist beside them.
_PING_EVERY_MS = 20_000
_PING_TIMEOUT_MS = 10_000
# A server answers pings faster than this with GOAWAY too_many_pings; gRPC's default is 300 s, which would cut every
# client of ours. Half the ping interval leaves room for jitter.
_PING_FLOOR_MS = 10_000
# Our own backoff sits above (agents) or the user waits (CLI): gRPC's default cap of 120 s would hide a controller
# that came back.
_RECONNECT_MIN_MS = 200
_RECONNECT_MAX_MS = 5_000
# Artifact chunks are 1 MiB. The default of 4 MiB stays, written down so that both ends agree.
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024


def client_options(address: str) -> Options:
    """Give the options of a channel to ``address``."""
    options: Options = [
        ("grpc.keepalive_time_ms", _PING_EVERY_MS),
        ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MIN_MS),
        ("grpc.min_reconnect_backoff_ms", _RECONNECT_MIN_MS),
        ("grpc.max_reconnect_backoff_ms", _RECONNECT_MAX_MS),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        # Two channels of one process (two agents in one test, a client beside an agent) must not share a connection.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if is_loopback(address):
        # A proxy from the environment cannot reach this machine's loopback.
        options.append(("grpc.enable_http_proxy", 0))
    return options


def aio_server_options() -> Options:
    """Give the options of a grpc.aio server."""
    return [
        ("grpc.keepalive_time_ms", _PING_EVERY_MS),
        ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_FLOOR_MS),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        # Two servers on one port would share its connections silently.
        ("grpc.so_reuseport", 0),
    ]


def is_loopback(address: str) -> bool:
    """Whether ``host:port`` names this machine's loopback."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bearer(token: str) -> tuple[str, str]:
    """Give the metadata entry that presents a token."""
    return (AUTHORIZATION, f"Bearer {token}")


def aio_channel(address: str, token: str | None = None) -> grpc.aio.Channel:
    """Make an asyncio channel to ``host:port``; has to be called in the running loop.

    Args:
        address: ``host:port``.
        token: Presented with every call.
    """
    channel = grpc.aio.insecure_channel(address, options=client_options(address))
    return channel if token is None else _AuthorizedChannel(channel, bearer(token))


def sync_channel(address: str, token: str | None = None) -> grpc.Channel:
    """Make a synchronous channel to ``host:port``.

    Args:
        address: ``host:port``.
        token: Presented with every call.
    """
    channel = grpc.insecure_channel(address, options=client_options(address))
    return channel if token is None else grpc.intercept_channel(channel, _AuthorizedCalls(bearer(token)))


class _AuthorizedChannel(grpc.aio.Channel):
    """Adds one metadata entry to every call.

    Not an aio interceptor: those wrap streaming calls in an object of their own, which loses the status of a stream
    that ends while it is being written to.
    """

    def __init__(self, inner: grpc.aio.Channel, entry: tuple[str, str]) -> None:
        self._inner = inner
        self._entry = entry

    def _adding(self, multicallable: Callable[..., Any]) -> Any:
        def call(*args: Any, metadata: Sequence[tuple[str, str | bytes]] | None = None, **kwargs: Any) -> Any:
            return multicallable(*args, metadata=(*(metadata or ()), self._entry), **kwargs)

        return call

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(exc_type, exc_val, exc_tb)

    async def close(self, grace: float | None = None) -> None:
        await self._inner.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._inner.channel_ready()

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._adding(self._inner.unary_unary(*args, **kwargs))

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._adding(self._inner.unary_stream(*args, **kwargs))

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._adding(self._inner.stream_unary(*args, **kwargs))

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._adding(self._inner.stream_stream(*args, **kwargs))


class _CallDetails(NamedTuple):
    method: str
    timeout: float | None
    metadata: Sequence[tuple[str, str | bytes]] | None
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


class _AuthorizedCalls(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    def __init__(self, entry: tuple[str, str]) -> None:
        self._entry = entry

    def _intercept(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        added = _CallDetails(
            method=details.method,
            timeout=details.timeout,
            metadata=(*(details.metadata or ()), self._entry),
            credentials=details.credentials,
            wait_for_ready=details.wait_for_ready,
            compression=details.compression,
        )
        return continuation(added, request)

    # Any: one function serves the four signatures.
    intercept_unary_unary: Any = _intercept
    intercept_unary_stream: Any = _intercept
    intercept_stream_unary: Any = _intercept
    intercept_stream_stream: Any = _intercept
