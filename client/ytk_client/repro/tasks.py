"""What a replay runs in a (sandboxed) child: the repro's own Python with torch, or a kernel without it.

Files come and go below the working directory: ``in/`` holds the unpacked repro, the outputs go to ``out.npz``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ytk_client.repro import tree
from ytk_client.repro.format import SOURCE, Kind, Loaded, read_repro
from ytk_core.errors import CandidateError, NotAvailableError, UserError
from ytk_core.formats.weights_npz import write_weights

if TYPE_CHECKING:
    import torch

OUTPUTS = "out.npz"
_COMPILE_LIMIT_S = 300.0
_LAUNCH, _WORKSPACE = "ytk_repro_launch", "ytk_repro_workspace"


def run_torch(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Compute a repro's outputs with its own Python.

    With ``export`` in the task, torch's ONNX exporter is tried too.

    Returns:
        ``outputs``: how many; or ``raised``: type and message; the torch version that did it; and with ``export``
        ``export_error``: null, or type and message.
    """
    if importlib.util.find_spec("torch") is None:
        raise NotAvailableError(
            "replaying with torch needs torch, which is not installed", hint="pip install 'yasp-toolkit[torch]'"
        )
    import torch

    from ytk_client.frontend.tensors import to_storage

    loaded = read_repro(workdir / "in")
    version: dict[str, Any] = {"torch": str(torch.__version__)}
    function, values = _callable(loaded, workdir / "in")
    if task.get("export"):
        version["export_error"] = _export_error(*_callable(loaded, workdir / "in"))
    try:
        with torch.no_grad(), contextlib.redirect_stdout(sys.stderr):
            result = function(*values[0], **values[1])
    except Exception as err:  # noqa: BLE001 - whatever it raises is the result
        return {"raised": {"type": type(err).__name__, "message": str(err)[:2000]}, **version}
    tensors = tree.flat_tensors(result, lambda value: isinstance(value, torch.Tensor))
    write_weights(workdir / OUTPUTS, {f"out{index}": to_storage(tensor) for index, tensor in enumerate(tensors)})
    return {"outputs": len(tensors), **version}


def _export_error(function: Any, values: tuple[list[Any], dict[str, Any]]) -> dict[str, str] | None:
    """Try the exporter as anybody would call it; give its innermost exception, None where it succeeds."""
    import torch

    class Wrapped(torch.nn.Module):  # type: ignore[misc]  # torch is not followed by the type checker
        def forward(self, *args: Any) -> Any:
            return function(*args)

    module = function if isinstance(function, torch.nn.Module) else Wrapped()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            torch.onnx.export(module, tuple(values[0]), kwargs=values[1], dynamo=True)
    except Exception as err:  # noqa: BLE001 - whatever the exporter raises is the result
        inner: BaseException = err
        while inner.__cause__ is not None:
            inner = inner.__cause__
        return {"type": type(inner).__name__, "message": str(inner)[:2000]}
    return None


def _callable(loaded: Loaded, folder: Path) -> tuple[Any, tuple[list[Any], dict[str, Any]]]:
    repro = loaded.repro
    inputs = {tensor.name: _to_torch(loaded, f"in/{tensor.name}", str(tensor.dtype)) for tensor in repro.inputs}
    namespace = _execute(folder / SOURCE / repro.entry)
    if repro.kind is Kind.REGION:
        function = namespace.get("region")
        if not callable(function):
            raise UserError(f"{repro.entry} defines no region()", code="bad_repro", hint="Capture it again.")
        return function, (list(inputs.values()), {})
    call = repro.call or {}
    args, kwargs = tree.decode(call.get("args"), inputs), tree.decode(call.get("kwargs"), inputs)
    return _module(loaded, namespace), (list(args), dict(kwargs))


def _execute(path: Path) -> dict[str, Any]:
    import types

    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    sys.path.insert(0, str(path.parent))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)  # noqa: S102 - in the sandbox, and what replay is for
    except Exception as err:
        raise UserError(
            f"{path.name} of the repro raised {type(err).__name__}: {err}",
            code="replay_import_failed",
            hint="It needs a package or a file that this machine lacks; `ytk embedded inspect` shows what captured it.",
        ) from err
    return module.__dict__


def _to_torch(loaded: Loaded, member: str, dtype: str) -> torch.Tensor:
    import torch

    tensor = torch.from_numpy(loaded.arrays[member].copy())
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


def _module(loaded: Loaded, namespace: dict[str, Any]) -> torch.nn.Module:
    """Make the model, and give the captured module with its captured state."""
    import torch

    repro = loaded.repro
    try:
        with contextlib.redirect_stdout(sys.stderr):
            model = namespace["Model"]()
        module: torch.nn.Module = model.get_submodule(repro.name)
    except Exception as err:
        raise UserError(
            f"Model() of the repro raised {type(err).__name__}: {err}",
            code="replay_model_failed",
            hint="A Model() that reads files cannot be captured: give the module a constructor of its own.",
        ) from err
    module.train(repro.training)
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        for tensor in repro.state:
            target = state.get(tensor.name)
            if target is None or tuple(target.shape) != tensor.shape:
                have = "none" if target is None else tuple(target.shape)
                raise UserError(
                    f"the module has {have} for {tensor.name!r}, the repro {tensor.shape}",
                    code="replay_state",
                    hint="Model() makes another module here than where it was captured.",
                )
            target.copy_(_to_torch(loaded, f"state/{tensor.name}", str(tensor.dtype)))
    return module


# ---- kernels -------------------------------------------------------------------------------------------------------------


def run_kernel(task: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Compute a region's outputs with a kernel: ``task`` names a built ``library``, or a ``bundle`` to compile first.

    Returns:
        ``outputs``: how many.
    """
    from ytk_client.repro import kernel_call

    loaded = read_repro(workdir / "in")
    repro = loaded.repro
    if "bundle" in task:
        functions = _compiled(Path(task["bundle"]), str(task["arch"]), workdir)
    else:
        functions = kernel_call.load_plugin(Path(task["library"]))
    outputs = kernel_call.call(
        functions,
        [(loaded.arrays[f"in/{tensor.name}"], tensor.dtype) for tensor in repro.inputs],
        [(tensor.shape, tensor.dtype) for tensor in repro.outputs],
        variant=int(task["variant"]),
        attributes=task["attributes"],
    )
    write_weights(workdir / OUTPUTS, {f"out{index}": array for index, array in enumerate(outputs)})
    return {"outputs": len(outputs)}


def _compiled(path: Path, arch: str, workdir: Path) -> Any:
    from ytk_client.repro import kernel_call
    from ytk_core.abi import include_dir
    from ytk_core.archspec import ArchSpec
    from ytk_core.cpu_build import cxx_flags
    from ytk_core.formats.kernel_bundle import read_bundle, translation_unit

    bundle = read_bundle(path)
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise NotAvailableError(
            "no C++ compiler (g++) on this machine",
            code="no_compiler",
            hint="Give the built .so instead of the bundle.",
        )
    launcher = bundle.meta.launcher
    # The kernel's own symbols are hidden, as in a built plugin; these two are not.
    shown = 'extern "C" __attribute__((visibility("default")))'
    arguments = "const ytk_context* c, const ytk_tensor* i, int n, ytk_tensor* o, int m"
    text = (
        translation_unit(bundle)
        + f"\n{shown} int {_LAUNCH}({arguments}) {{ return {launcher.launch}(c, i, n, o, m); }}\n"
    )
    if launcher.workspace:
        text += f"{shown} int64_t {_WORKSPACE}({arguments}) {{ return {launcher.workspace}(c, i, n, o, m); }}\n"
    elif launcher.fixed_workspace_bytes:
        text += f"{shown} int64_t {_WORKSPACE}({arguments}) {{ return {launcher.fixed_workspace_bytes}; }}\n"
    source, library = workdir / "kernel.cpp", workdir / "kernel.so"
    source.write_text(text)
    flags = cxx_flags(ArchSpec.parse(arch), bundle.meta.compile_flags)
    argv = [compiler, *flags, "-I", str(include_dir()), str(source), "-o", str(library)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_COMPILE_LIMIT_S, check=False)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:400])
        raise CandidateError(f"the kernel does not compile: {first}", code="compile_error", hint="Generate it again.")
    has_workspace = bool(launcher.workspace or launcher.fixed_workspace_bytes)
    return kernel_call.load_symbols(library, _LAUNCH, _WORKSPACE if has_workspace else None)
