"""The client as a library: synchronous, one channel, a deadline on every call.

::

    with Client(load_settings()) as client:
        submitted = client.submit(spec, {"model.onnx": Path("model.onnx")})
        for event in client.events(submitted.job.id):
            ...

Every error is a YtkError; gRPC types do not leave this module:

============================  ==========================================================================
``no_controller``             nobody answers at the address when the client connects
``unauthenticated``           the key is missing or wrong; the message says where it came from
``unavailable``, ``deadline`` the controller went away later and did not come back within the patience
any other code                RemoteError with the controller's or the agent's own class, code and hint
============================  ==========================================================================
"""

from __future__ import annotations

import importlib.metadata
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import grpc
import msgspec
import tenacity

from ytk_client.config import Settings
from ytk_core import convert
from ytk_core.channels import sync_channel
from ytk_core.errors import BoardError, RemoteError, UserError, YtkError
from ytk_core.jobs import JobSpec, JobState, NamedBlob
from ytk_core.rpc_errors import RETRYABLE, from_rpc_error
from ytk_core.workers import JobView, PeerVersion, WorkerView
from ytk_proto.v1 import artifacts_pb2_grpc, fleet_pb2, fleet_pb2_grpc, jobs_pb2, jobs_pb2_grpc

if TYPE_CHECKING:
    from types import TracebackType

_T = TypeVar("_T")

# A first answer over any network we know takes less; a wrong address should not cost more.
_CONNECT_DEADLINE_S = 10.0
_CALL_DEADLINE_S = 30.0
# A submit may have to check thousands of inputs against the store.
_SUBMIT_DEADLINE_S = 120.0
# Streams are opened anew after this long, so that a half-dead connection cannot hold one for ever.
_STREAM_DEADLINE_S = 600.0
# After the job's end the log's tail is still under way.
_LOG_TAIL_S = 15.0


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how eagerly a lost controller is waited for, in seconds."""

    first_wait_s: float = 0.2
    longest_wait_s: float = 5.0
    give_up_s: float = 120.0


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Who answered, and as whom it knows us."""

    version: PeerVersion
    principal: str
    scope: str


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a submit; ``joined``: an equal job was already there and is shared."""

    job: JobView
    submission_id: str
    joined: bool


class LogChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a job's log; ``offset`` is that of the first."""

    data: bytes
    offset: int


class _Failed(msgspec.Struct, frozen=True):
    """How a pump thread tells of its error."""

    error: BaseException


class _Ended(msgspec.Struct, frozen=True):
    """How a pump thread tells that its stream ended cleanly."""

    stream: str


class Client:
    """A connection to one controller.

    Args:
        settings: Address and key, with their sources for messages.
        notify: Called with a line of text when the controller is lost and when it is back.
        patience: How long a lost controller is waited for.
    """

    def __init__(
        self, settings: Settings, *, notify: Callable[[str], None] | None = None, patience: Patience | None = None
    ) -> None:
        self._settings = settings
        self._notify = notify or (lambda _text: None)
        self._patience = patience or Patience()
        self._address = settings.address()
        self._lost = False
        self._back_at = 0.0
        self._noting = threading.Lock()
        self._channel = sync_channel(self._address, settings.api_key.value)
        self._jobs = jobs_pb2_grpc.JobServiceStub(self._channel)
        self._fleet = fleet_pb2_grpc.FleetServiceStub(self._channel)
        self._artifacts = artifacts_pb2_grpc.ArtifactServiceStub(self._channel)

    def __enter__(self) -> Self:
        try:
            self.connect()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; jobs go on."""
        self._channel.close()

    # ---- calls -------------------------------------------------------------------------------------------------------

    def connect(self) -> ServerInfo:
        """Check that the controller is there and takes our key, without waiting for one that is not.

        Raises:
            BoardError: Code ``no_controller``.
            UserError: Code ``unauthenticated`` or ``protocol_version``.
        """
        request = fleet_pb2.GetServerInfoRequest(
            version=convert.peer_version_to_pb(PeerVersion(software=importlib.metadata.version("yasp-toolkit")))
        )
        try:
            answer = self._fleet.GetServerInfo(request, timeout=_CONNECT_DEADLINE_S)
        except grpc.RpcError as err:
            error = self._error(err)
            if error.code in {"unavailable", "deadline"}:
                source = self._settings.controller.source
                raise BoardError(
                    f"no controller answers at {self._address} (address from {source})",
                    code="no_controller",
                    hint="Start one on this machine with `ytk up`, or name a running one with --controller HOST:PORT.",
                ) from err
            raise error from err
        return ServerInfo(
            version=convert.peer_version_from_pb(answer.version), principal=answer.principal, scope=answer.scope
        )

    def workers(self, role: str = "", *, include_lost: bool = False) -> tuple[WorkerView, ...]:
        """List workers, of one role or of all."""
        request = fleet_pb2.ListWorkersRequest(role=role, include_lost=include_lost)
        answer = self._call(self._fleet.ListWorkers, request)
        return tuple(convert.worker_from_pb(worker) for worker in answer.workers)

    def drain(self, worker_id: str, *, reason: str = "", resume: bool = False) -> WorkerView:
        """Give a worker no new jobs; with ``resume``, let it serve again."""
        request = fleet_pb2.DrainWorkerRequest(worker_id=worker_id, reason=reason, resume=resume)
        return convert.worker_from_pb(self._call(self._fleet.DrainWorker, request).worker)

    def submit(
        self,
        spec: JobSpec,
        files: Mapping[str, Path],
        *,
        on_upload: Callable[[int, int], None] | None = None,
    ) -> Submitted:
        """Upload what the controller lacks and put the job in the queue.

        A submit whose answer was lost is repeated under the same idempotency key, so it never makes two jobs.

        Args:
            spec: The job; its ``inputs`` are replaced by those of ``files``.
            files: Input name to file.
            on_upload: Called with (bytes done, bytes in all).

        Raises:
            RemoteError: Code ``unsatisfiable``: no worker could ever take it; the hint names the nearest.
        """
        blobs = self._upload(files, on_upload)
        spec = msgspec.structs.replace(spec, inputs=tuple(blobs))
        request = jobs_pb2.SubmitJobRequest(
            spec=convert.job_spec_to_pb(spec),
            idempotency_key=uuid.uuid4().hex,
            version=convert.peer_version_to_pb(PeerVersion(software=importlib.metadata.version("yasp-toolkit"))),
        )
        answer = self._call(self._jobs.SubmitJob, request, deadline_s=_SUBMIT_DEADLINE_S)
        return Submitted(job=convert.job_from_pb(answer.job), submission_id=answer.submission_id, joined=answer.joined)

    def job(self, job_id: str) -> JobView:
        """Give one job.

        Raises:
            RemoteError: Code ``not_found``.
        """
        return convert.job_from_pb(self._call(self._jobs.GetJob, jobs_pb2.GetJobRequest(id=job_id)).job)

    def jobs(
        self, *, states: Sequence[JobState] = (), parent_id: str = "", limit: int = 0, before_id: str = ""
    ) -> tuple[JobView, ...]:
        """List jobs, newest first; ``limit`` 0 means the controller's 100."""
        request = jobs_pb2.ListJobsRequest(
            states=[convert.job_state_to_pb(state) for state in states],
            parent_id=parent_id,
            limit=limit,
            before_id=before_id,
        )
        return tuple(convert.job_from_pb(job) for job in self._call(self._jobs.ListJobs, request).jobs)

    def cancel(self, job_id: str, *, submission_id: str = "") -> JobView:
        """Cancel a job, or only one submitter's interest in it."""
        request = jobs_pb2.CancelJobRequest(id=job_id, submission_id=submission_id)
        return convert.job_from_pb(self._call(self._jobs.CancelJob, request).job)

    def download(self, blob: NamedBlob, dest: Path, *, on_bytes: Callable[[int, int], None] | None = None) -> None:
        """Fetch a blob to ``dest``: verified, and renamed into place only when whole."""
        from ytk_core.artifacts import SyncArtifactClient

        dest.parent.mkdir(parents=True, exist_ok=True)
        client = SyncArtifactClient(self._channel)
        self._retrying(lambda: client.download(blob.digest, dest, progress=on_bytes))

    # ---- streams -----------------------------------------------------------------------------------------------------

    def watch(self, job_id: str) -> Iterator[JobView]:
        """Yield the job at once and after every change, to its terminal state; survives a restart of the controller."""
        for event in self.events(job_id, with_log=False):
            if isinstance(event, JobView):
                yield event

    def logs(self, job_id: str, *, offset: int = 0, follow: bool = False) -> Iterator[LogChunk]:
        """Yield a job's log from ``offset``; with ``follow``, until the job has ended and all was sent."""
        for item in self._pumped({"log": self._log_pump(job_id, offset, follow)}):
            if isinstance(item, LogChunk):
                yield item

    def events(self, job_id: str, *, with_log: bool = True, log_offset: int = 0) -> Iterator[JobView | LogChunk]:
        """Follow a job: yield its changes and its log as they come, in the caller's thread.

        Ends after the terminal state, when the log was sent whole.

        Raises:
            YtkError: The job is unknown, or the controller stayed away longer than the patience.
        """
        pumps = {"job": self._job_pump(job_id)}
        if with_log:
            pumps["log"] = self._log_pump(job_id, log_offset, True)
        yield from self._pumped(pumps)

    def _job_pump(self, job_id: str) -> _Pump:
        def opened() -> Any:
            return self._jobs.WatchJob(jobs_pb2.WatchJobRequest(id=job_id), timeout=_STREAM_DEADLINE_S)

        last: list[JobView] = []

        def read(response: jobs_pb2.WatchJobResponse) -> Iterator[JobView]:
            job = convert.job_from_pb(response.job)
            if last != [job]:  # a stream opened anew begins with what we know
                last[:] = [job]
                yield job

        return _Pump(opened, read, lambda: bool(last) and last[0].state.terminal)

    def _log_pump(self, job_id: str, offset: int, follow: bool) -> _Pump:
        position = [offset]

        def opened() -> Any:
            request = jobs_pb2.ReadLogRequest(id=job_id, offset=position[0], follow=follow)
            return self._jobs.ReadLog(request, timeout=_STREAM_DEADLINE_S)

        def read(response: jobs_pb2.ReadLogResponse) -> Iterator[LogChunk]:
            skip = max(0, position[0] - response.offset)
            if response.data[skip:]:
                position[0] = response.offset + len(response.data)
                yield LogChunk(data=response.data[skip:], offset=response.offset + skip)

        return _Pump(opened, read, lambda: True)

    def _pumped(self, pumps: dict[str, _Pump]) -> Iterator[Any]:
        """Run one thread per stream and yield what they read, until all have ended."""
        items: queue.Queue[Any] = queue.Queue(maxsize=256)
        stop = threading.Event()
        for name, pump in pumps.items():
            threading.Thread(
                target=self._run_pump, args=(name, pump, items, stop), name=f"ytk-{name}", daemon=True
            ).start()
        open_streams = set(pumps)
        try:
            while open_streams:
                try:
                    item = items.get(timeout=None if "job" in open_streams or len(pumps) == 1 else _LOG_TAIL_S)
                except queue.Empty:
                    self._notify("the end of the log did not arrive")
                    return
                if isinstance(item, _Ended):
                    open_streams.discard(item.stream)
                elif isinstance(item, _Failed):
                    raise item.error
                else:
                    yield item
        finally:
            stop.set()
            for pump in pumps.values():
                pump.cancel()

    def _run_pump(self, name: str, pump: _Pump, items: queue.Queue[Any], stop: threading.Event) -> None:
        def put(item: Any) -> None:
            while not stop.is_set():
                try:
                    items.put(item, timeout=0.5)
                except queue.Full:
                    continue
                return

        try:
            ended = False
            while not ended and not stop.is_set():
                ended = self._retrying(lambda: pump.run_once(put, self._note_alive), sleep=stop.wait, stream=True)
                if not ended:
                    stop.wait(self._patience.first_wait_s)
            put(_Ended(name))
        except BaseException as err:  # noqa: BLE001 - handed to the caller's thread, which raises it
            put(_Failed(err))

    # ---- the pieces ----------------------------------------------------------------------------------------------------

    def _upload(self, files: Mapping[str, Path], on_upload: Callable[[int, int], None] | None) -> Sequence[NamedBlob]:
        from ytk_core.artifacts import SyncArtifactClient

        client = SyncArtifactClient(self._channel)
        return self._retrying(lambda: client.ensure(files, progress=on_upload))

    def _call(self, method: Any, request: Any, *, deadline_s: float = _CALL_DEADLINE_S) -> Any:
        """Make one idempotent unary call, again where the controller went away meanwhile."""
        return self._retrying(lambda: method(request, timeout=deadline_s))

    def _retrying(
        self, work: Callable[[], _T], *, sleep: Callable[[float], object] | None = None, stream: bool = False
    ) -> _T:
        """Run ``work``; after an infrastructure failure again, with jittered backoff, until the patience is over.

        Args:
            work: One attempt.
            sleep: Waits between attempts.
            stream: It tells itself when the controller answers; its return may be that of a stream that was cut.
        """
        patience = self._patience
        began = 0.0

        def attempt() -> _T:
            nonlocal began
            began = time.monotonic()
            return work()

        options: dict[str, Any] = {} if sleep is None else {"sleep": sleep}
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_worth_another_try),
            stop=tenacity.stop_after_delay(patience.give_up_s),
            wait=tenacity.wait_random_exponential(multiplier=patience.first_wait_s, max=patience.longest_wait_s),
            before_sleep=lambda _state: self._note_lost(began),
            reraise=True,
            **options,
        )
        try:
            result = retrying(attempt)
        except grpc.RpcError as err:
            raise self._error(err) from err
        if not stream:
            self._note_alive()
        return result

    def _note_lost(self, began: float) -> None:
        """Tell once that the controller is gone, however many calls find out.

        Args:
            began: When the attempt that failed was made. One from before the controller came back is old news, told late.
        """
        with self._noting:
            if not self._lost and began >= self._back_at:
                self._lost = True
                patience = self._patience.give_up_s
                self._notify(f"lost the controller at {self._address}; trying again for {patience:.0f} s")

    def _note_alive(self) -> None:
        with self._noting:
            if self._lost:
                self._lost = False
                self._back_at = time.monotonic()
                self._notify(f"the controller at {self._address} is back")

    def _error(self, err: grpc.RpcError) -> YtkError:
        error = from_rpc_error(err, peer=f"the controller at {self._address}")
        if error.code != "unauthenticated":
            return error
        key = self._settings.api_key
        what = "no API key is set" if key.value is None else f"the API key from {key.source} is not valid"
        return UserError(
            f"the controller at {self._address} refused us: {what}",
            code="unauthenticated",
            hint="Give the right key with --api-key-file, YTK_API_KEY or YTK_API_KEY_FILE; `ytk config show` lists them.",
        )


class _Pump:
    """Reads one stream, over several connections.

    Args:
        opened: Opens the stream where the last one ended.
        read: Gives the items of one response.
        complete: Whether a clean end of the stream is the real end.
    """

    def __init__(
        self, opened: Callable[[], Any], read: Callable[[Any], Iterator[Any]], complete: Callable[[], bool]
    ) -> None:
        self._opened = opened
        self._read = read
        self._complete = complete
        self._call: Any = None
        self._cancelled = False

    def run_once(self, put: Callable[[Any], None], alive: Callable[[], None]) -> bool:
        """Read one connection's stream to its end.

        Args:
            put: Takes each item.
            alive: Told when the first response comes.

        Returns:
            Whether all is read. False: the stream broke after something came, so open it anew.

        Raises:
            grpc.RpcError: It broke before anything came.
        """
        self._call = self._opened()
        if self._cancelled:  # cancel() may have come between two connections
            self._call.cancel()
        came = False
        try:
            for response in self._call:
                if not came:
                    came = True
                    alive()
                for item in self._read(response):
                    put(item)
        except grpc.RpcError as err:
            if self._cancelled:
                return True
            if came and _worth_another_try(err):
                return False
            if _status(err) is grpc.StatusCode.DEADLINE_EXCEEDED:
                return False
            raise
        return self._complete()

    def cancel(self) -> None:
        """End the stream from another thread."""
        self._cancelled = True
        if self._call is not None:
            self._call.cancel()


def _status(err: BaseException) -> grpc.StatusCode | None:
    return err.code() if isinstance(err, grpc.Call) else None


def _worth_another_try(err: BaseException) -> bool:
    """Whether a failure is the infrastructure's and may be gone next time."""
    if isinstance(err, RemoteError):
        return err.code in {"infrastructure", "unavailable", "shutting_down"}
    if isinstance(err, BoardError):
        return err.code in {"unavailable", "deadline", "infrastructure"}
    return isinstance(err, grpc.RpcError) and _status(err) in RETRYABLE
