"""The commands of ``ytk``: path, where the click object is, and its one-line help.

``ytk --help`` reads this table and imports no command. A test holds each line against the command's own help.
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """One command: ``path`` as typed, ``target`` as ``module:attribute``, ``help`` the first line of its help."""

    path: str
    target: str
    help: str


GROUPS: dict[str, str] = {
    "embedded": "Models on a target: prepare, build plugins, compile, verify.",
    "kernelgen": "Generate kernels for carved regions.",
    "eval": "Workers that score generated kernels.",
    "jobs": "Jobs of the controller: list, follow, cancel.",
    "fleet": "For operators: take workers out of service and back.",
    "config": "Settings and where each came from.",
}

COMMANDS: tuple[Entry, ...] = (
    Entry(
        "embedded prepare",
        "ytk_client.cli.prepare:prepare",
        "Export a PyTorch model; carve what the target refuses into plugins.",
    ),
    Entry(
        "embedded build-plugin",
        "ytk_client.cli.build_plugin:build_plugin",
        "Compile a generated kernel into a plugin for an arch spec.",
    ),
    Entry(
        "embedded compile",
        "ytk_client.cli.compile:compile_engine",
        "Build an engine on a worker of the arch spec.",
    ),
    Entry(
        "embedded verify",
        "ytk_client.cli.verify:verify",
        "Run engine bundles on the target and compare with torch.",
    ),
    Entry(
        "embedded profile",
        "ytk_client.cli.profile:profile",
        "Tell where the time of an engine goes, by modules of the model.",
    ),
    Entry(
        "embedded catalogue",
        "ytk_client.cli.catalogue:catalogue",
        "List the plugins we ship, or write the kernels that a model needs.",
    ),
    Entry(
        "embedded inspect",
        "ytk_client.cli.inspect:inspect",
        "Explain a file without running it: what a target would refuse or misread, and what to do.",
    ),
    Entry(
        "embedded capture",
        "ytk_client.cli.capture:capture",
        "Put one carved region or one module into a small file that others can replay.",
    ),
    Entry(
        "embedded replay",
        "ytk_client.cli.replay:replay",
        "Run a repro and compare with what was captured.",
    ),
    Entry(
        "embedded workers",
        "ytk_client.cli.workers:embedded_workers",
        "List the workers that build and run engines.",
    ),
    Entry(
        "kernelgen export",
        "ytk_client.cli.kernelgen_export:kernelgen_export",
        "Export a module or function as a region that kernels can be generated for.",
    ),
    Entry(
        "kernelgen compile",
        "ytk_client.cli.kernelgen:kernelgen_compile",
        "Generate a kernel for a region and keep the fastest right one.",
    ),
    Entry(
        "kernelgen skeleton",
        "ytk_client.cli.kernelgen_hand:kernelgen_skeleton",
        "Write the frame of a kernel, for somebody who writes it by hand.",
    ),
    Entry(
        "kernelgen check",
        "ytk_client.cli.kernelgen_hand:kernelgen_check",
        "Check a kernel bundle: contract, target, region, and that it compiles.",
    ),
    Entry(
        "kernelgen get",
        "ytk_client.cli.kernelgen:kernelgen_get",
        "Download the kernel of a generation job.",
    ),
    Entry("eval workers", "ytk_client.cli.workers:eval_workers", "List the workers that generate and score kernels."),
    Entry("jobs list", "ytk_client.cli.jobs:list_jobs", "List jobs, newest first."),
    Entry("jobs show", "ytk_client.cli.jobs:show_job", "Show one job: state, inputs, outputs, failure."),
    Entry("jobs logs", "ytk_client.cli.jobs:job_logs", "Print a job's log."),
    Entry("jobs attach", "ytk_client.cli.jobs:attach_job", "Follow a job to its end, and download what it gave."),
    Entry("jobs cancel", "ytk_client.cli.jobs:cancel_job", "Cancel a job and its children."),
    Entry("up", "ytk_client.cli.up:up", "Run the whole stack on this machine."),
    Entry("config show", "ytk_client.cli.config:show_config", "Print each setting and where it came from."),
    Entry("fleet workers", "ytk_client.cli.workers:fleet_workers", "List all workers."),
    Entry("fleet drain", "ytk_client.cli.fleet:drain", "Give a worker no new jobs."),
    Entry("fleet resume", "ytk_client.cli.fleet:resume", "Let a drained worker serve again."),
)
