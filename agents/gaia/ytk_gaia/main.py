"""``ytk-gaia``: the agent, as a generator (needs torch) or as an evaluator (does not)."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import click

from ytk_core.agent.device import cpu_device_uid, runtime_dir
from ytk_core.agent.handler import JobHandler
from ytk_core.agent.main import AgentSettings, WorkerFacts, agent_main
from ytk_core.archspec import ArchSpec, host_arch_specs
from ytk_core.errors import NotAvailableError
from ytk_gaia import GENERATOR_VERSION
from ytk_gaia.evaluator.machine_rates import RATES_FILE

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


def _arch_specs(settings: AgentSettings) -> tuple[str, ...]:
    own = [str(spec) for engine in settings.extra["engines"] for spec in host_arch_specs(engine)]
    more = [str(ArchSpec.parse(text)) for text in settings.extra["arch_specs"]]
    return tuple(dict.fromkeys([*own, *more]))


def describe(settings: AgentSettings) -> WorkerFacts:
    """Say what this worker can do.

    Raises:
        NotAvailableError: A generator without torch, or an evaluator without a compiler.
        UserError: An arch spec on the command line is malformed.
    """
    specs = _arch_specs(settings)
    if settings.extra["mode"] == GENERATOR:
        capabilities = (*torch_capabilities(), f"{GENERATOR_CAPABILITY}=={GENERATOR_VERSION}")
        return WorkerFacts(arch_specs=specs, capabilities=capabilities, device_name="torch generator")
    from ytk_gaia.evaluator.build import compiler_version

    levels = sorted({ArchSpec.parse(text).device for text in specs}, reverse=True)
    return WorkerFacts(
        arch_specs=specs,
        capabilities=(f"compiler=={compiler_version()}", "deployment_target==cpu", "deployment_target==torch"),
        device_uid=cpu_device_uid(),
        device_name=f"CPU ({levels[0]})",
    )


def make_handlers(settings: AgentSettings) -> Sequence[JobHandler]:
    """Give the mode's handler."""
    from ytk_gaia.handlers import EvaluateHandler, GenerateHandler

    if settings.extra["mode"] == GENERATOR:
        return [GenerateHandler()]
    return [EvaluateHandler(cpu_device_uid(), runtime_dir() / RATES_FILE)]


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
    ],
    help_text="Run a Gaia agent: generate kernels, or measure them.",
)

if __name__ == "__main__":
    main()
