"""``ytk kernelgen export``: a region of one's own, without preparing a model."""

from __future__ import annotations

from pathlib import Path

import click

from ytk_client.cli.output import JSON, format_option, print_fields, print_json

_ENTRY = "Model"


def _split(source: str) -> tuple[Path, str]:
    """Read ``model.py[:Name]``. A file whose own name has a colon is taken as it is."""
    path, colon, entry = source.rpartition(":")
    if not colon or Path(source).exists() or not entry.isidentifier():
        return Path(source), _ENTRY
    return Path(path), entry


@click.command()
@click.argument("source", metavar="MODEL.PY[:NAME]")
@click.option(
    "-o",
    "--output-file",
    "out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The region to write, usually <Name>.pt2.",
)
@click.option(
    "--args",
    "arguments",
    default="get_fwd_args",
    show_default=True,
    help="Function in the file that gives the example inputs.",
)
@click.option("--name", default="", help="Name of the plugin.  [default: NAME]")
@click.option("--namespace", default="yasp", show_default=True, help="Namespace of the plugin.")
@click.option(
    "--dynamic", multiple=True, metavar="INPUT:AXIS=MIN,OPT,MAX", help="Let an axis of an input differ at run time."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of torch's random numbers while the file is run.")
@format_option("--format")
def kernelgen_export(
    source: str,
    out: Path,
    arguments: str,
    name: str,
    namespace: str,
    dynamic: tuple[str, ...],
    seed: int,
    output: str,
) -> None:
    """Export a module or function as a region that kernels can be generated for.

    NAME is a class without constructor arguments, a module, or a function of tensors in the file; `Model` where it is left out.
    The file is run here, and nowhere else. Inputs of the kernel are the arguments, then parameters and buffers.
    """
    from ytk_client.outputs import check_outputs

    path, entry = _split(source)
    check_outputs(out)
    from ytk_client.frontend.standalone import export_region, write_exported

    exported = export_region(
        path, entry, arguments=arguments, name=name, namespace=namespace, dynamic=dynamic, seed=seed
    )
    write_exported(out, exported)
    spec = exported.spec
    if output == JSON:
        print_json({"region": str(out), "spec": spec})
        return
    free = {(each.input, each.axis): each for each in spec.extents}
    print_fields(
        [
            ("region", out),
            ("plugin", f"{spec.namespace}::{spec.name}"),
            *(
                (f"input {k}", f"{t.name} {t.dtype}{_shape(t.shape, t.dynamic_axes)}, {t.role}")
                for k, t in enumerate(spec.inputs)
            ),
            *(
                (f"output {k}", f"{t.name} {t.dtype}{_shape(t.shape, t.dynamic_axes)}")
                for k, t in enumerate(spec.outputs)
            ),
            *(
                (f"input {index} axis {axis}", f"{each.min} to {each.max}, usually {each.opt}")
                for (index, axis), each in free.items()
            ),
            ("operators", ", ".join(spec.aten_ops)),
            (
                "next",
                f"ytk kernelgen compile -r {out} -g cpu --config deployment_target=cpu -o {spec.name}.module_source.py",
            ),
        ]
    )


def _shape(shape: tuple[int, ...], dynamic: tuple[int, ...]) -> str:
    return f"[{', '.join('?' if axis in dynamic else str(extent) for axis, extent in enumerate(shape))}]"
