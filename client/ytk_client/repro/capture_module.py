"""Capture one module of a model.py: what went in, what came out or was raised, its state and the source text."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ytk_client.repro import tree
from ytk_client.repro.format import Arrays, Kind, Loaded, Raised, Repro, Tensor, describe_versions
from ytk_core.errors import UserError

if TYPE_CHECKING:
    import torch

    from ytk_client.frontend.load_model import LoadedModel

_MAX_SOURCES = 100


class _Recorder:
    """Hooks on a module: keeps its first call."""

    def __init__(self, wanted_call: int) -> None:
        self._wanted = wanted_call
        self.calls = 0
        self.tensors: dict[str, torch.Tensor] = {}
        self.call: dict[str, Any] | None = None
        self.state: dict[str, torch.Tensor] = {}
        self.outputs: list[torch.Tensor] | None = None

    def before(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Keep copies before the module runs: it may write to its inputs and buffers."""
        if self.calls == self._wanted:
            self.state = {name: tensor.detach().clone() for name, tensor in state_of(module).items()}
            self.call = {
                "args": tree.encode(tuple(args), "argument", self._add, _is_tensor),
                "kwargs": tree.encode(dict(kwargs), "keyword argument", self._add, _is_tensor),
            }
        self.calls += 1

    def after(self, _module: torch.nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
        """Keep what the module gave."""
        if self.calls == self._wanted + 1 and self.outputs is None:
            self.outputs = [tensor.detach().clone() for tensor in tree.flat_tensors(output, _is_tensor)]

    def _add(self, tensor: torch.Tensor) -> str:
        name = f"in{len(self.tensors)}"
        self.tensors[name] = tensor.detach().clone()
        return name


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Give parameters and buffers by name, those that are not saved with the model too; shared ones once."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def capture_module(model_path: Path, module_path: str, *, call: int = 0, seed: int = 0) -> Loaded:
    """Run a model once and put a repro of one of its modules together.

    Args:
        model_path: The user's ``model.py``; it is executed, here and by ``replay``.
        module_path: As ``named_modules`` gives it; "" is the whole model.
        call: Which call of the module, where it is called more than once.
        seed: Of torch's random generator while the model is made.

    Raises:
        UserError: No such module, it is never called, or its arguments cannot be written down; or the model is broken before it.
        NotAvailableError: torch is not installed.
    """
    from ytk_client.frontend.load_model import load_model

    model = load_model(model_path, seed=seed)
    module = _submodule(model, module_path)
    recorder = _Recorder(call)
    handles = [
        module.register_forward_pre_hook(recorder.before, with_kwargs=True),
        module.register_forward_hook(recorder.after, with_kwargs=True),
    ]
    raised: Raised | None = None
    try:
        model.call(model.flat_args)
    except UserError as err:
        # An error before or after this module is none of its: the repro is about what happened inside.
        if recorder.call is None:
            raise
        cause = err.__cause__ or err
        raised = Raised(type=type(cause).__name__, message=str(cause)[:2000]) if recorder.outputs is None else None
    finally:
        for handle in handles:
            handle.remove()
    if recorder.call is None:
        raise UserError(
            f"module {module_path or '(top)'!r} is called {recorder.calls} time(s); there is no call {call}",
            code="module_not_called",
            hint="Capture a module that forward() calls; --call counts from 0.",
        )
    return _assemble(model, module, module_path, recorder, raised, seed)


def _submodule(model: LoadedModel, path: str) -> torch.nn.Module:
    modules = dict(model.module.named_modules())
    if path in modules:
        return modules[path]
    near = difflib.get_close_matches(path, modules, n=3, cutoff=0.4)
    raise UserError(
        f"{model.path} has no module {path!r}",
        code="no_such_module",
        hint=f"Did you mean {', '.join(near)}?" if near else f"There are: {', '.join(filter(None, modules))}"[:400],
    )


def _assemble(
    model: LoadedModel, module: torch.nn.Module, path: str, recorder: _Recorder, raised: Raised | None, seed: int
) -> Loaded:
    import torch

    from ytk_client.frontend.tensors import dtype_of, to_storage

    arrays: Arrays = {}

    def listed(prefix: str, tensors: Mapping[str, torch.Tensor]) -> tuple[Tensor, ...]:
        found = []
        for name, tensor in tensors.items():
            arrays[f"{prefix}/{name}"] = to_storage(tensor)
            found.append(Tensor(name=name, dtype=dtype_of(tensor), shape=tuple(tensor.shape)))
        return tuple(found)

    outputs = {f"out{index}": tensor for index, tensor in enumerate(recorder.outputs or ())}
    sources = user_sources(model.path)
    return Loaded(
        repro=Repro(
            kind=Kind.MODULE,
            name=path,
            entry=model.path.name,
            inputs=listed("in", recorder.tensors),
            outputs=listed("out", outputs),
            call=recorder.call,
            state=listed("state", recorder.state),
            training=module.training,
            raised=raised,
            attributes=_settings(module),
            versions=describe_versions({"torch": str(torch.__version__)}),
            origin={"module_class": f"{type(module).__module__}.{type(module).__qualname__}", "seed": seed},
        ),
        arrays=arrays,
        sources=sources,
    )


def _settings(module: torch.nn.Module) -> dict[str, Any]:
    def is_plain(value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return all(is_plain(item) for item in value)
        return value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and value - value == 0)

    return {
        name: value
        for name, value in sorted(vars(module).items())
        if not name.startswith("_") and name != "training" and is_plain(value)
    }


def user_sources(model_path: Path) -> dict[str, str]:
    """Give the model file and the modules beside and below it that it imported, by path relative to its folder.

    Raises:
        UserError: ``cannot_capture``: that is more than a repro should hold.
    """
    from ytk_client.frontend.user_code import is_user_file

    folder = model_path.parent
    files = {model_path}
    for label, module in list(sys.modules.items()):
        name = getattr(module, "__file__", None)
        if label.startswith("ytk_"):
            continue  # this toolkit, where it is installed from a checkout that holds the model too
        if isinstance(name, str) and name.endswith(".py") and is_user_file(name, model_path):
            files.add(Path(name))
    found = {file.relative_to(folder).as_posix(): file.read_text(encoding="utf-8") for file in sorted(files)}
    if len(found) > _MAX_SOURCES:
        raise UserError(
            f"{model_path} imports {len(found)} files of its folder, more than {_MAX_SOURCES}",
            code="cannot_capture",
            hint="Copy the failing module into a model.py of its own, in an empty folder.",
        )
    return found
