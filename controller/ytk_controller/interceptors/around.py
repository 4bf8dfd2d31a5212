"""One way to put something around every kind of call."""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, kw_only=True)
class CallInfo:
    """Which call it is. ``method`` is ``/package.Service/Method``."""

    method: str
    metadata: dict[str, str | bytes]
    response_streaming: bool
    request_streaming: bool

    @property
    def service(self) -> str:
        """The service's name without package."""
        return self.method.split("/")[1].rpartition(".")[2]

    @property
    def rpc(self) -> str:
        """The method's name."""
        return self.method.rpartition("/")[2]


class Around(grpc.aio.ServerInterceptor, abc.ABC):
    """Base of our interceptors: a context manager that every call runs in."""

    @abc.abstractmethod
    def around(self, call: CallInfo, context: Context) -> AbstractAsyncContextManager[None]:
        """Give what the call runs in."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wrap the handler of a call."""
        handler = await continuation(handler_call_details)
        if handler is None:  # no such method: gRPC answers UNIMPLEMENTED
            return handler
        call = CallInfo(
            method=handler_call_details.method,
            metadata=dict(handler_call_details.invocation_metadata or ()),
            response_streaming=handler.response_streaming,
            request_streaming=handler.request_streaming,
        )
        return self._streaming(handler, call) if handler.response_streaming else self._unary(handler, call)

    def _unary(self, handler: Any, call: CallInfo) -> grpc.RpcMethodHandler[Any, Any]:
        inner = handler.stream_unary if handler.request_streaming else handler.unary_unary
        make = (
            grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        )

        async def behavior(request: Any, context: Context) -> Any:
            async with self.around(call, context):
                return await inner(request, context)

        return make(behavior, handler.request_deserializer, handler.response_serializer)

    def _streaming(self, handler: Any, call: CallInfo) -> grpc.RpcMethodHandler[Any, Any]:
        inner = handler.stream_stream if handler.request_streaming else handler.unary_stream
        make = (
            grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_stream_rpc_method_handler
        )

        async def behavior(request: Any, context: Context) -> AsyncIterator[Any]:
            async with self.around(call, context):
                async for response in inner(request, context):
                    yield response

        return make(behavior, handler.request_deserializer, handler.response_serializer)
