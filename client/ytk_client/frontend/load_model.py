"""Run the user's ``model.py`` and say precisely what is wrong with it.

This is the only place where it is executed: locally, by the one who wrote it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib.util
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ytk_client.frontend.catalogue.spconv_on_cpu import add_bias_apart, in_one_thread
from ytk_client.frontend.user_code import describe_error
from ytk_core.errors import NotAvailableError, UserError

if TYPE_CHECKING:
    import torch

_MARK = "__ytk_user_model__"
REFERENCES = "get_reference_args"
"""A function that a model file may define: a list of further inputs that the graph is compared on and verified with."""
_EXPECTED = (
    "model.py defines a class `Model` (an nn.Module without constructor arguments) and a function `get_fwd_args()`."
)


@dataclass(frozen=True)
class LoadedModel:
    """A model in eval mode and its example inputs.

    ``args`` are the positional and ``kwargs`` the keyword arguments of ``forward``: tensors of any shape and dtype, or
    tuples, lists, dicts and dataclasses of tensors. ``references`` are further inputs of the same structure, flat.
    """

    path: Path
    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    references: tuple[tuple[torch.Tensor, ...], ...] = ()

    @property
    def flat_args(self) -> tuple[torch.Tensor, ...]:
        """All tensors of the positional, then of the keyword arguments: the order of the exported graph's inputs."""
        return tuple(_flatten((self.args, dict(self.kwargs)))[0])

    def with_inputs(self, flat: Sequence[torch.Tensor]) -> LoadedModel:
        """Give the same model with other example inputs, in the order of :attr:`flat_args`."""
        args, kwargs = _unflatten(list(flat), (self.args, dict(self.kwargs)))
        return dataclasses.replace(self, args=args, kwargs=kwargs)

    def call(self, flat: tuple[torch.Tensor, ...]) -> Any:
        """Run forward on inputs in the order of :attr:`flat_args` and give what it returns.

        Raises:
            UserError: ``model_forward_failed``, with the file and line of the user's code.
        """
        return self.call_keeping(flat)[0]

    def call_keeping(self, flat: tuple[torch.Tensor, ...]) -> tuple[Any, list[torch.Tensor]]:
        """Run forward as :meth:`call` does; give also what it left in its inputs."""
        import torch

        # The model gets copies: one that writes to its inputs must not change the reference.
        copies = [tensor.clone() for tensor in flat]
        args, kwargs = _unflatten(copies, (self.args, dict(self.kwargs)))
        with (
            torch.no_grad(),
            user_output_to_stderr(),
            _blamed("model_forward_failed", "forward() raised", self.path),
            in_one_thread(self.module),
        ):
            result = self.module(*args, **kwargs)
        register_dataclasses(result)
        return result, copies


def load_model(path: Path, *, seed: int = 0, entry: str = "Model", arguments: str = "get_fwd_args") -> LoadedModel:
    """Execute ``path`` and give its model and example inputs.

    torch's random generator is seeded meanwhile, so that a model with random weights is the same each time, and put
    back afterwards.

    Args:
        path: The file.
        seed: Of torch's random numbers.
        entry: What is the model: a class without constructor arguments, a module, or a function of tensors.
        arguments: Function that gives the example inputs.

    Raises:
        UserError: The file is missing (``model_missing``) or broken (``model_syntax``), lacks ``Model`` or
            ``get_fwd_args`` (``model_incomplete``), its code raises (``model_import_failed``, ``model_init_failed``,
            ``model_args_failed``), or the arguments are not tensors (``model_bad_args``).
        NotAvailableError: torch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        msg = "prepare runs the model and needs torch, which is not installed"
        raise NotAvailableError(msg, hint="pip install 'yasp-toolkit[torch]'")
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _load(path.resolve(), entry, arguments)


def _load(path: Path, entry: str, arguments: str) -> LoadedModel:
    namespace = _execute(path)
    made, get_args = (_required(namespace, name, path) for name in (entry, arguments))
    with user_output_to_stderr(), _blamed("model_init_failed", f"{entry}() raised", path):
        module = _as_module(made)
    _check_module(module, path, entry)
    add_bias_apart(module)
    with user_output_to_stderr(), _blamed("model_args_failed", f"{arguments}() raised", path):
        raw = get_args()
    args, kwargs = _checked_args(raw, path)
    model = LoadedModel(path, module.eval(), args, kwargs)
    get_more = getattr(namespace, REFERENCES, None)
    if get_more is None:
        return model
    with user_output_to_stderr(), _blamed("model_args_failed", f"{REFERENCES}() raised", path):
        more = list(get_more())
    return dataclasses.replace(
        model, references=tuple(_reference(each, index, model) for index, each in enumerate(more))
    )


def _reference(raw: Any, index: int, model: LoadedModel) -> tuple[torch.Tensor, ...]:
    """Check one of the further inputs: structure, element types and ranks are those of the example inputs."""
    args, kwargs = _checked_args(raw, model.path, REFERENCES)
    flat, structure = _flatten((args, kwargs))
    wanted, expected = _flatten((model.args, dict(model.kwargs)))
    hint = "Each entry looks as what get_fwd_args() returns; only values, and extents that are --dynamic, differ."
    if structure != expected:
        msg = f"{REFERENCES}() in {model.path}: entry {index} has not the structure of get_fwd_args()"
        raise UserError(msg, code="model_bad_args", hint=hint)
    for position, (have, want) in enumerate(zip(flat, wanted, strict=True)):
        if have.dtype is not want.dtype or have.dim() != want.dim():
            msg = (
                f"{REFERENCES}() in {model.path}: entry {index}, tensor {position} is {have.dtype} of rank {have.dim()}, "
                f"that of get_fwd_args() {want.dtype} of rank {want.dim()}"
            )
            raise UserError(msg, code="model_bad_args", hint=hint)
    return tuple(flat)


def _as_module(made: Callable[..., Any]) -> Any:
    """Give the module that an entry is, or makes; a plain function becomes one that calls it."""
    import torch

    if isinstance(made, torch.nn.Module):
        return made
    if isinstance(made, types.FunctionType) and _takes_arguments(made):
        return _function_module(made)
    return made()


def _takes_arguments(function: Callable[..., Any]) -> bool:
    """Whether a function computes with what it is given; one without arguments makes a module, as a class does."""
    return any(p.default is p.empty for p in inspect.signature(function).parameters.values())


def _function_module(function: Callable[..., Any]) -> Any:
    import torch

    class Function(torch.nn.Module):  # type: ignore[misc]  # torch carries no types
        """Calls a function; has its signature, by which inputs are named."""

    Function.forward = lambda _self, *args, **kwargs: function(*args, **kwargs)
    Function.forward.__signature__ = _with_self(function)
    return Function()


def _with_self(function: Callable[..., Any]) -> inspect.Signature:
    own = inspect.signature(function)
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    return own.replace(parameters=[first, *own.parameters.values()])


@contextlib.contextmanager
def user_output_to_stderr() -> Iterator[None]:
    """Send what the user's code prints to stderr: stdout carries the command's own output."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def _blamed(code: str, what: str, path: Path) -> Iterator[None]:
    """Turn any exception of the user's code into a UserError that names its file and line."""
    try:
        yield
    except Exception as err:  # whatever the user's code raises is a finding about it
        raise UserError(
            f"{what}: {describe_error(err, path)}", code=code, hint="Fix the model, then run again."
        ) from err


def _execute(path: Path) -> types.ModuleType:
    try:
        source = path.read_bytes()
    except OSError as err:
        msg = f"cannot read the model file {path}: {err.strerror}"
        raise UserError(msg, code="model_missing", hint="Pass the path of a model.py. " + _EXPECTED) from err
    try:
        program = compile(source, str(path), "exec")
    except (SyntaxError, ValueError) as err:  # ValueError: null bytes
        line = getattr(err, "lineno", None) or 1
        text = (getattr(err, "text", None) or "").strip()
        msg = f"{path}:{line}: not valid Python: {getattr(err, 'msg', err)}" + (f": {text}" if text else "")
        raise UserError(msg, code="model_syntax", hint="Fix the line, then run again.") from err
    module = types.ModuleType(_module_name(path))
    module.__file__ = str(path)
    setattr(module, _MARK, True)
    # inspect.getsource and pickle look the user's classes up there.
    sys.modules[module.__name__] = module
    with _import_path(path.parent), user_output_to_stderr(), _blamed("model_import_failed", "model.py raised", path):
        exec(program, module.__dict__)  # noqa: S102 - running the user's model is what prepare is for
    return module


def _module_name(path: Path) -> str:
    """Give the name the file would have when imported, unless something else goes by that name already."""
    taken = sys.modules.get(path.stem)
    return path.stem if taken is None or hasattr(taken, _MARK) else f"user_{path.stem}"


@contextlib.contextmanager
def _import_path(folder: Path) -> Iterator[None]:
    """Let model.py import its neighbours, as it could when run as a script."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the user's code may have removed it
            sys.path.remove(str(folder))


def _required(module: types.ModuleType, name: str, path: Path) -> Callable[..., Any]:
    value = getattr(module, name, None)
    if value is None:
        near = difflib.get_close_matches(name, [each for each in vars(module) if not each.startswith("_")], n=1)
        guess = f"Did you mean `{near[0]}`? " if near else ""
        raise UserError(f"{path} defines no `{name}`", code="model_incomplete", hint=guess + _EXPECTED)
    if not callable(value):
        msg = f"`{name}` in {path} is not callable but {type(value).__name__}"
        raise UserError(msg, code="model_incomplete", hint=_EXPECTED)
    made: Callable[..., Any] = value
    return made


def _check_module(module: Any, path: Path, entry: str) -> None:
    import torch

    if not isinstance(module, torch.nn.Module):
        msg = f"{entry}() in {path} gave {type(module).__name__}, not an nn.Module"
        raise UserError(msg, code="model_incomplete", hint=_EXPECTED)


def _flatten(tree: Any) -> tuple[list[torch.Tensor], Any]:
    import torch

    leaves, spec = torch.utils._pytree.tree_flatten(tree)  # noqa: SLF001 - torch's pytree has no public name
    return leaves, spec


def _unflatten(leaves: list[torch.Tensor], like: Any) -> Any:
    import torch

    return torch.utils._pytree.tree_unflatten(leaves, _flatten(like)[1])  # noqa: SLF001 - as above


def register_dataclasses(value: Any) -> None:
    """Make the dataclasses in a value known to torch, which otherwise takes each for one opaque leaf."""
    import torch

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # The user's code may have done it; torch warns of a second time.
        if type(value) not in torch.utils._pytree.SUPPORTED_NODES:  # noqa: SLF001 - torch's pytree has no public name
            torch.export.register_dataclass(type(value))
        inner = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        inner = list(value.values())
    elif isinstance(value, (tuple, list)):
        inner = list(value)
    else:
        return
    for item in inner:
        register_dataclasses(item)


def _checked_args(raw: Any, path: Path, function: str = "get_fwd_args") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Sort what get_fwd_args() gave into positional and keyword arguments.

    A tensor, a sequence (positional) or a dict (by name); each argument is a tensor or a tuple, list, dict or dataclass
    of tensors.
    """
    import torch

    hint = "Return a tuple of arguments (positional) or a dict of arguments (by name): tensors, or tuples, lists, dicts and dataclasses of tensors."
    if isinstance(raw, torch.Tensor):
        raw = (raw,)
    if isinstance(raw, Mapping):
        named: list[tuple[str, Any]] = [(str(key), value) for key, value in raw.items()]
    elif isinstance(raw, (tuple, list)):
        named = [(f"argument {index}", value) for index, value in enumerate(raw)]
    else:
        msg = f"{function}() in {path} returned {type(raw).__name__}, not tensors"
        raise UserError(msg, code="model_bad_args", hint=hint)
    if not named:
        raise UserError(f"{function}() in {path} returned no argument at all", code="model_bad_args", hint=hint)
    values = []
    for label, value in named:
        register_dataclasses(value)
        leaves = _flatten(value)[0]
        for leaf in leaves:
            check_leaf(leaf, f"{function}() in {path}: {label} {'is' if leaf is value else 'holds'}", hint)
        values.append(_unflatten([leaf.detach() for leaf in leaves], value))
    if isinstance(raw, Mapping):
        return (), dict(zip((name for name, _ in named), values, strict=True))
    return tuple(values), {}


def check_leaf(leaf: Any, label: str, hint: str = "") -> None:
    """Refuse what no input can be; ``label`` says in words what the leaf is part of.

    Raises:
        UserError: ``model_bad_args``: no tensor, or a sparse or quantized one.
    """
    import torch

    if not isinstance(leaf, torch.Tensor):
        msg = f"{label} {type(leaf).__name__}, not a tensor"
        raise UserError(msg, code="model_bad_args", hint=hint + " Constants belong into Model.")
    if leaf.layout is not torch.strided or leaf.is_quantized:
        msg = f"{label} a {leaf.layout} {leaf.dtype} tensor"
        raise UserError(msg, code="model_bad_args", hint="Engines take dense tensors.")
