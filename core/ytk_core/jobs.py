"""Job words shared by controller, agents and client: kinds, states, specs, results, and the schema of each kind's parameters."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from ytk_core.errors import FailureClass
from ytk_core.input_ranges import InputRange


class JobKind(enum.StrEnum):
    """What a job does and which agent takes it."""

    ENGINE_BUILD = "engine.build"
    ENGINE_PROFILE = "engine.profile"
    ENGINE_VERIFY = "engine.verify"
    PLUGIN_BUILD = "plugin.build"
    KERNEL_GENERATE = "kernel.generate"
    KERNEL_EVALUATE = "kernel.evaluate"
    WORKER_HEALTH = "worker.health"


class JobState(enum.StrEnum):
    """Where a job is. Terminal: SUCCEEDED, FAILED, CANCELLED, POISONED."""

    QUEUED = "QUEUED"
    LEASED = "LEASED"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    POISONED = "POISONED"

    @property
    def terminal(self) -> bool:
        """Whether no further transition exists."""
        return self in TERMINAL_STATES


TERMINAL_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.POISONED})


class _Frozen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class NamedBlob(_Frozen, frozen=True, kw_only=True):
    """A content-addressed blob under a name the job kind defines."""

    name: str
    digest: str
    size_bytes: int


class Failure(_Frozen, frozen=True, kw_only=True):
    """Why a job ended without a result."""

    failure_class: FailureClass
    code: str
    message: str
    hint: str = ""


class JobSpec(_Frozen, frozen=True, kw_only=True):
    """Everything that decides a job's result.

    ``params`` is a JSON object whose schema belongs to the kind (the ``*Params`` structs here).
    """

    kind: JobKind
    arch_spec: str = ""
    inputs: tuple[NamedBlob, ...] = ()
    params: dict[str, Any] = {}
    requirements: tuple[str, ...] = ()
    wall_limit_s: float = 3600.0
    measuring: bool = False
    priority: int = 0
    no_cache: bool = False
    schema_version: int = 1


class JobResult(_Frozen, frozen=True, kw_only=True):
    """What a job gave: named outputs in the artifact store, and a small JSON summary."""

    outputs: tuple[NamedBlob, ...] = ()
    summary: dict[str, Any] = {}


class Lease(_Frozen, frozen=True, kw_only=True):
    """The right to work on a job; ``fence`` grows with each claim."""

    job_id: str
    fence: int


# ---- parameters, inputs and outputs per kind -------------------------------------------------------------------------
# Inputs and outputs are named blobs; the names are given with each struct.


class EngineBuildParams(_Frozen, frozen=True, kw_only=True):
    """``engine.build``. In: ``model.onnx``, ``model.npz``, ``plugins/<file>.so`` and ``plugins/<file>.so.manifest.json``.

    Out: ``engine.tgz`` (the engine bundle). Summary: benchmark row and registered plugins.
    """

    precision: str = "fp32"
    iterations: int = 50
    warmup: int = 10
    threads: int = 0
    """CPU threads; 0 lets the engine use the worker's default."""
    ranges: tuple[InputRange, ...] = ()
    """Of the model's open input axes; the engine is tuned for and measured at the usual extents."""


class EngineProfileParams(_Frozen, frozen=True, kw_only=True):
    """``engine.profile``. In: ``engine.tgz``. Out: ``engine.tgz`` with profile and benchmark taken anew."""

    iterations: int = 50
    warmup: int = 10
    threads: int = 0


class EngineVerifyParams(_Frozen, frozen=True, kw_only=True):
    """``engine.verify``. In: ``engine.tgz``, ``reference.npz``. Out: ``verify.json`` (:mod:`ytk_core.formats.verify_report`)."""

    iterations: int = 50
    warmup: int = 10
    threads: int = 0
    rtol: float | None = None
    atol: float | None = None


class PluginBuildParams(_Frozen, frozen=True, kw_only=True):
    """``plugin.build``. In: ``source`` (a kernel bundle). Out: ``plugin.so``, ``manifest.json``, ``build.log``.

    Name and namespace are already in the bundle: the client rewrites them in a copy. ``declared_abi``: where Forge has no headers
    of the TensorRT in question, build against an interface declared by hand; the manifest then says so.
    """

    declared_abi: bool = False


class KernelGenerateParams(_Frozen, frozen=True, kw_only=True):
    """``kernel.generate``. In: ``region.pt2``, and optionally ``baseline.py``, a kernel bundle to compare with.

    Out: ``bundle.py`` (kernel bundle), ``report.json``. ``config``: the validated ``--config`` keys (docs/reference/kernelgen.md).
    ``toolchain``: generator version and compiler of the workers in view; another one is another search. ``name``: of the plugin
    where the region's file does not say.
    """

    config: dict[str, Any] = {}
    gpu: str = ""
    name: str = ""
    toolchain: str = ""


class KernelEvaluateParams(_Frozen, frozen=True, kw_only=True):
    """``kernel.evaluate``, child of ``kernel.generate``.

    In: ``task.npz`` (inputs and float64 expectation per sample), ``task.json``, ``candidates/<id>.py`` (kernel bundles).
    Out: ``evaluation.json``: a verdict and times per candidate. ``baseline``: id of the candidate that the others are compared with.
    ``search``: sets the evaluations of a search that must not reuse earlier ones apart from those; a second attempt at that same
    search finds its own again.
    """

    budget_s: float = 60.0
    threads: int = 0
    baseline: str = ""
    search: str = ""


PARAMS_OF: dict[JobKind, type[_Frozen]] = {
    JobKind.ENGINE_BUILD: EngineBuildParams,
    JobKind.ENGINE_PROFILE: EngineProfileParams,
    JobKind.ENGINE_VERIFY: EngineVerifyParams,
    JobKind.PLUGIN_BUILD: PluginBuildParams,
    JobKind.KERNEL_GENERATE: KernelGenerateParams,
    JobKind.KERNEL_EVALUATE: KernelEvaluateParams,
}
