"""``ytk-gaia``: the agent, as a generator (needs torch) or as an evaluator (does not)."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ytk_core.agent.device import cpu_device_uid, runtime_dir
from ytk_core.agent.handler import JobHandler
from ytk_core.agent.main import AgentSettings, WorkerFacts, agent_main
from ytk_core.archspec import ArchSpec, host_arch_specs
from ytk_core.cuda_build import sm_of
from ytk_core.errors import NotAvailableError
from ytk_core.workers import EMULATED
from ytk_gaia import GENERATOR_VERSION

if TYPE_CHECKING:
    from ytk_gaia.evaluator.cuda_device import GpuDevice

ROLE = "gaia"
GENERATOR_CAPABILITY = "generator"
GENERATOR, EVALUATOR = "generator", "evaluator"
# A CPU kernel is the same for every engine; these are the engines whose arch specs are advertised by default.
DEFAULT_ENGINES = ("ov20264", "ort132")


def torch_capabilities() -> tuple[str, ...]:
    """Give torch's version and pt2 schema without importing it (five seconds, and the parent must stay light).

    Raises:
        NotAvailableError: torch is not installed.
    """
    found = importlib.util.find_spec("torch")
    if found is None or not found.origin:
        msg = "the generator needs torch, which is not installed"
        raise NotAvailableError(msg, code="no_torch", hint="pip install 'yasp-toolkit[gaia-generator]'")
    version = metadata.version("torch").partition("+")[0]
    capabilities = [f"torch=={version}"]
    schema = Path(found.origin).parent / "_export" / "serde" / "schema.py"
    if schema.is_file() and (
        number := re.search(r"^SCHEMA_VERSION = \((\d+),", schema.read_text("utf-8"), re.MULTILINE)
    ):
        capabilities.append(f"pt2_schema=={number[1]}")
    return tuple(capabilities)


# GPUs that are often somewhere else than the one who writes for them. One per CUDA major version is enough for a kernel: sm and
# types decide, not the operating system; another is added with --emulate.
DEFAULT_EMULATED = (
    "arm64-sm87-dos6010-cu114-trt86",
    "arm64-sm87-l4t364-cu126-trt103",
    "amd64-sm90-linux-cu130-trt1014",
)


def _arch_specs(settings: AgentSettings) -> tuple[str, ...]:
    own = [str(spec) for engine in settings.extra["engines"] for spec in host_arch_specs(engine)]
    more = [str(ArchSpec.parse(text)) for text in settings.extra["arch_specs"]]
    return tuple(dict.fromkeys([*own, *more]))


def _gpu_specs(settings: AgentSettings) -> tuple[str, ...]:
    """Give the GPUs without which kernels for them are made and judged.

    Raises:
        UserError: An arch spec on the command line is malformed, or no GPU's.
    """
    found = [ArchSpec.parse(text) for text in settings.extra["emulate"]]
    for arch in found:
        sm_of(arch)
    return tuple(dict.fromkeys(str(arch) for arch in found))


def _compilable(specs: Sequence[str]) -> tuple[str, ...]:
    """Give those GPUs for which there is a device compiler here."""
    from ytk_gaia.evaluator.device_facts import nvrtc_for

    found = []
    for text in specs:
        try:
            nvrtc_for(ArchSpec.parse(text))
        except NotAvailableError:
            continue
        found.append(text)
    return tuple(found)


def _gpus() -> list[GpuDevice]:
    """Give the GPUs of this machine; a machine without device nodes is not asked further."""
    from ytk_gaia.evaluator.cuda_device import device_nodes, find_devices

    return find_devices()[0] if device_nodes() else []


def _own_gpu_specs(specs: Sequence[str]) -> tuple[str, ...]:
    return tuple(text for text in specs if ArchSpec.parse(text).device_kind == "gpu")


def describe(settings: AgentSettings) -> WorkerFacts:
    """Say what this worker can do.

    Raises:
        NotAvailableError: A generator without torch, or an evaluator without a compiler.
        UserError: An arch spec on the command line is malformed.
    """
    specs = _arch_specs(settings)
    if settings.extra["mode"] == GENERATOR:
        capabilities = (*torch_capabilities(), f"{GENERATOR_CAPABILITY}=={GENERATOR_VERSION}")
        given = tuple(dict.fromkeys([*specs, *_gpu_specs(settings)]))
        return WorkerFacts(arch_specs=given, capabilities=capabilities, device_name="torch generator")
    from ytk_gaia.evaluator.build import compiler_version

    levels = sorted(
        {arch.device for text in specs if (arch := ArchSpec.parse(text)).device_kind == "cpu"}, reverse=True
    )
    gpus, compilable = _gpus(), _compilable(tuple(dict.fromkeys([*_gpu_specs(settings), *_own_gpu_specs(specs)])))
    served = tuple(text for text in compilable if any(gpu.serves(ArchSpec.parse(text)) for gpu in gpus))
    emulated = tuple(text for text in compilable if text not in served)
    specs = tuple(text for text in specs if text not in _own_gpu_specs(specs))
    targets = ("cpu", "torch", "tensorrt") if compilable else ("cpu", "torch")
    return WorkerFacts(
        # What is really here goes first.
        arch_specs=tuple(dict.fromkeys([*served, *specs, *emulated])),
        capabilities=(
            f"compiler=={compiler_version()}",
            *(f"deployment_target=={target}" for target in targets),
            *(f"{EMULATED}=={text}" for text in emulated),
        ),
        device_uid=gpus[0].device_uid if served else cpu_device_uid(),
        device_name=gpus[0].name if served else f"CPU ({levels[0]})",
    )


def make_handlers(settings: AgentSettings) -> Sequence[JobHandler]:
    """Give the mode's handler."""
    from ytk_gaia.handlers import EvaluateHandler, GenerateHandler

    if settings.extra["mode"] == GENERATOR:
        return [GenerateHandler()]
    return [EvaluateHandler(cpu_device_uid(), runtime_dir())]


main = agent_main(
    ROLE,
    make_handlers,
    describe,
    options=[
        click.Option(
            ["--mode"],
            type=click.Choice([GENERATOR, EVALUATOR]),
            required=True,
            help="generator: makes kernels (needs torch). evaluator: measures them on this machine.",
        ),
        click.Option(
            ["--engine", "engines"],
            multiple=True,
            default=DEFAULT_ENGINES,
            help="Engine field of the arch specs that this worker serves.",
        ),
        click.Option(
            ["--arch-spec", "arch_specs"],
            multiple=True,
            help="A further arch spec to serve, besides this machine's own.",
        ),
        click.Option(
            ["--emulate", "emulate"],
            multiple=True,
            default=DEFAULT_EMULATED,
            help="A GPU's arch spec: CUDA kernels are made for it, and judged without it where NVRTC is installed.",
        ),
    ],
    help_text="Run a Gaia agent: generate kernels, or measure them.",
)

if __name__ == "__main__":
    main()
