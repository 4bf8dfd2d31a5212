"""Plugins of the catalogue that a model needs: their kernels, and the jobs that build them."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ytk_client.cli.follow import FollowOptions, output_blob, run_job
from ytk_client.cli.output import note
from ytk_client.plugins import TARGET_OF_ENGINE, CustomPlugin, load_plugins, manifest_path
from ytk_core.archspec import ArchSpec
from ytk_core.catalogue import bundles_for
from ytk_core.errors import ToolkitError
from ytk_core.formats.kernel_bundle import KernelBundle, render_bundle
from ytk_core.jobs import JobKind, JobSpec
from ytk_core.node_contracts import node_contracts_from_onnx

if TYPE_CHECKING:
    from ytk_client.api import Client


def shipped_bundles(onnx: Path, given: Sequence[CustomPlugin], arch: ArchSpec) -> dict[str, KernelBundle]:
    """Give the kernels of the shipped plugins that a model needs and nobody gave, by plugin name.

    Raises:
        FormatError: It is no ONNX model.
        UserError: The model needs a plugin that this release does not ship.
    """
    own = {(plugin.manifest.meta.plugin_namespace, plugin.manifest.meta.plugin_name) for plugin in given}
    nodes = [node for node in node_contracts_from_onnx(onnx) if (node.namespace, node.name) not in own]
    return bundles_for(nodes, TARGET_OF_ENGINE[arch.engine_name])


@contextlib.contextmanager
def built_plugins(
    client: Client, bundles: Mapping[str, KernelBundle], arch: ArchSpec, *, quiet: bool
) -> Iterator[tuple[CustomPlugin, ...]]:
    """Have shipped plugins built for an arch spec; they are there while the context lasts.

    Each is a job of its own, answered from the controller's cache if the same was built before.

    Raises:
        ToolkitError: Any error of the job.
    """
    with tempfile.TemporaryDirectory(prefix="ytk-shipped-") as directory:
        paths = []
        for name, bundle in bundles.items():
            source, library = Path(directory) / f"{name}.module_source.py", Path(directory) / f"{name}.so"
            source.write_text(render_bundle(bundle), encoding="utf-8")
            note(f"building the shipped plugin {bundle.meta.plugin_namespace}::{name} for {arch}")
            spec = JobSpec(kind=JobKind.PLUGIN_BUILD, arch_spec=str(arch), wall_limit_s=900.0)
            job = run_job(client, spec, {"source": source}, FollowOptions(detach=False, quiet=quiet))
            if job is None:
                msg = f"the build of the shipped plugin {name} was left before it ended"
                raise ToolkitError(
                    msg, code="detached", hint="Run the command again: what was built is not built anew."
                )
            client.download(output_blob(job, "manifest.json"), manifest_path(library))
            client.download(output_blob(job, "plugin.so"), library)
            paths.append(library)
        yield load_plugins(paths)
