"""Which workers a kernel generation can use, decided before a job is spent on a kernel that nobody could use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ytk_core.archspec import ArchSpec, nearest
from ytk_core.errors import UserError
from ytk_core.formats.plugin_meta import DeploymentTarget
from ytk_core.jobs import JobKind
from ytk_core.workers import EMULATED, WorkerState, WorkerView

TARGET_OF_DEVICE: dict[str, DeploymentTarget] = {"cpu": DeploymentTarget.CPU, "gpu": DeploymentTarget.TENSORRT}
_TARGET_OF_ENGINE: dict[str, DeploymentTarget] = {
    "openvino": DeploymentTarget.CPU,
    "onnxruntime": DeploymentTarget.CPU,
    "tensorrt": DeploymentTarget.TENSORRT,
}


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluator's arch spec with the names under which ``-g`` finds it."""

    worker_id: str
    device_name: str
    arch: ArchSpec
    emulated: bool = False
    """Whether kernels for it are judged without the device: right or wrong, never fast or slow."""

    @property
    def shown(self) -> str:
        """For messages."""
        name = f"{self.device_name}, emulated" if self.emulated else self.device_name
        return f"{name} ({self.arch})" if name else str(self.arch)


def offers(workers: Iterable[WorkerView]) -> tuple[Offer, ...]:
    """Give what the connected evaluators offer, each worker's best arch spec first."""
    found = [
        Offer(
            worker_id=worker.description.worker_id,
            device_name=worker.description.device_name,
            arch=ArchSpec.parse(text),
            emulated=f"{EMULATED}=={text}" in worker.description.capabilities,
        )
        for worker in workers
        if worker.state is not WorkerState.LOST and JobKind.KERNEL_EVALUATE in worker.description.kinds
        for text in worker.description.arch_specs
    ]
    # Who has the device goes before who emulates it.
    return tuple(sorted(found, key=lambda offer: offer.emulated))


def choose(found: Sequence[Offer], gpu: str) -> Offer:
    """Find the evaluator that ``-g`` means.

    Args:
        found: What is offered.
        gpu: An arch spec, ``cpu``, a device field such as ``sm87``, or (part of) a device name.

    Raises:
        UserError: Code ``gpu_not_offered``; the hint lists what is.
    """
    word = gpu.strip().lower()
    if word.count("-") == 4:
        wanted = ArchSpec.parse(gpu.strip())
        matching = [offer for offer in found if offer.arch == wanted]
    elif word == "cpu":
        matching = [offer for offer in found if offer.arch.device_kind == "cpu"]
    else:
        exact = [
            offer for offer in found if word in {offer.device_name.lower(), offer.arch.device, offer.worker_id.lower()}
        ]
        matching = exact or [offer for offer in found if word and word in offer.device_name.lower()]
    if matching:
        return matching[0]
    if not found:
        raise UserError(
            f"no evaluator is connected, so nothing can score kernels for -g {gpu}",
            code="gpu_not_offered",
            hint="Start a Gaia evaluator on that device; `ytk up` starts one for this CPU.",
        )
    # A CPU offers many arch specs; each worker's first is its best and names it well enough.
    best = {offer.worker_id: offer.shown for offer in reversed(found)}
    hint = f"Offered: {'; '.join(dict.fromkeys(reversed(best.values())))}."
    if word.count("-") == 4 and (near := nearest(ArchSpec.parse(gpu.strip()), [offer.arch for offer in found])):
        hint += f" The nearest is {near[0]}, which differs in {', '.join(near[1])}."
    raise UserError(f"no evaluator offers -g {gpu}", code="gpu_not_offered", hint=hint)


def toolchain(workers: Iterable[WorkerView], offer: Offer) -> str:
    """Say what makes and measures kernels here: another generator or compiler gives other kernels and times.

    Args:
        workers: The connected Gaia workers.
        offer: The chosen evaluator.
    """
    found = set()
    for worker in workers:
        if worker.state is not WorkerState.LOST:
            mine = worker.description.worker_id == offer.worker_id
            for capability in worker.description.capabilities:
                name = capability.partition("==")[0]
                if name == "generator" or (name == "compiler" and mine):
                    found.add(capability)
    return "; ".join(sorted(found))


def check_deployment(target: DeploymentTarget | None, offer: Offer, engines: Iterable[WorkerView]) -> None:
    """Check that a kernel for ``target`` can be scored by the evaluator and plugged into an engine in view.

    Args:
        target: ``--config deployment_target``; None where it was not given.
        offer: The chosen evaluator.
        engines: The connected Kronos workers.

    Raises:
        UserError: Code ``wrong_deployment_target``, with the one that fits.
    """
    fitting = TARGET_OF_DEVICE[offer.arch.device_kind]
    if target is None:
        raise UserError(
            "no deployment_target was given; without one the result is a kernel that no engine can use",
            code="wrong_deployment_target",
            hint=f"For {offer.shown} add: --config deployment_target={fitting}",
        )
    if target is DeploymentTarget.TORCH:
        return
    if target is not fitting:
        raise UserError(
            f"deployment_target={target} does not go with -g {offer.shown}: its kernels are for deployment_target={fitting}",
            code="wrong_deployment_target",
            hint=f"Use --config deployment_target={fitting}, or score on {'a GPU' if target is DeploymentTarget.TENSORRT else 'a CPU'} with -g.",
        )
    if offer.emulated:
        return  # the device is elsewhere, and so are its engines
    specs = [
        ArchSpec.parse(text)
        for worker in engines
        if worker.state is not WorkerState.LOST
        for text in worker.description.arch_specs
    ]
    if specs and all(_TARGET_OF_ENGINE[spec.engine_name] is not target for spec in specs):
        names = sorted({spec.engine_name for spec in specs})
        takes = sorted({_TARGET_OF_ENGINE[name] for name in names})
        raise UserError(
            f"deployment_target={target}, but the engine workers here run {', '.join(names)}, which take {', '.join(takes)}",
            code="wrong_deployment_target",
            hint=f"Use --config deployment_target={takes[0]}, or connect a Kronos worker with another engine.",
        )
