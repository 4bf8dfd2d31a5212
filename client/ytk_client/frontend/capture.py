"""Capture the model as a graph with torch.export, once per export."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import torch

from ytk_client.frontend import torch_adapter
from ytk_client.frontend.catalogue.adapters import adapted
from ytk_client.frontend.inline import inline_contexts
from ytk_client.frontend.load_model import LoadedModel, user_output_to_stderr
from ytk_client.frontend.user_code import UserFrame, chain, first_line, user_frame
from ytk_core.errors import UserError

_DATA_DEPENDENT_HINT = (
    "An engine runs one fixed graph: replace the Python branch or size by a tensor expression (torch.where, masks, padding "
    "to a fixed size), or take this part out of the model."
)
_CAPTURE_HINT = (
    "torch.export must be able to trace forward(): no data pointers, no .numpy(), no control flow on values; wrap what cannot be traced in a "
    "torch.library.custom_op with a fake implementation, then prepare carves it."
)

DYNAMIC_HINT = "Leave that axis static, or compute with x.shape instead of fixed numbers; two inputs that must agree need the same range."


def capture(model: LoadedModel, dynamic_shapes: Any = None) -> torch.export.ExportedProgram:
    """Give the exported program of a model at its example inputs.

    Args:
        model: What to capture.
        dynamic_shapes: As ``torch.export.export`` takes it; None where all shapes are static.

    Raises:
        UserError: ``capture_blocked``: torch.export cannot follow forward(). The message names the module and the line.
            This is never an unsupported operator: the exporter has not been asked yet.
    """
    try:
        # A failing trace prints the whole graph so far; what matters of it becomes our message.
        with (
            torch.no_grad(),
            torch_adapter.quiet(),
            contextlib.redirect_stderr(io.StringIO()),
            user_output_to_stderr(),
            adapted(model.module),
        ):
            program = torch.export.export(
                model.module, model.args, dict(model.kwargs), dynamic_shapes=dynamic_shapes, strict=False
            )
            inline_contexts(program)
            return program
    except Exception as err:  # torch.export raises nearly anything
        ours = next((link for link in chain(err) if isinstance(link, UserError)), None)
        if ours is not None:  # what a shipped plugin cannot do was said by its adapter
            raise ours from err
        if dynamic_shapes is not None and _is_constraint(err):
            msg = f"the model does not take every extent that --dynamic allows: {_constraint_text(err)}"
            raise UserError(msg, code="dynamic_refused", hint=DYNAMIC_HINT) from err
        raise _blocked(err, model) from err


def _is_constraint(error: Exception) -> bool:
    return any(word in str(error) for word in ("onstraint", "specialized", "Dim.DYNAMIC"))


def _constraint_text(error: Exception) -> str:
    """Give the lines of torch's message that name an axis."""
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip().startswith("-")]
    return " ".join(lines[:2]) or first_line(str(error))


def _blocked(error: Exception, model: LoadedModel) -> UserError:
    frame = user_frame(error, model.path, model.module)
    place = _place(frame)
    if any(torch_adapter.is_data_dependent(link) for link in chain(error)):
        msg = f"capture blocked{place}: control flow or a shape depends on tensor values"
        return UserError(msg, code="capture_blocked", hint=_DATA_DEPENDENT_HINT)
    scripted = next(
        (name for name, each in model.module.named_modules() if isinstance(each, torch.jit.ScriptModule)), None
    )
    if scripted is not None:
        msg = f"capture blocked: module {scripted or '(top)'!r} is a torch.jit.ScriptModule, whose code torch.export cannot see"
        hint = "Build the model from the eager module; a scripted file (torch.jit.load) has lost its Python."
        return UserError(msg, code="capture_blocked", hint=hint)
    root = list(chain(error))[-1]
    msg = f"capture blocked{place}: {type(root).__name__}: {first_line(str(root))}"
    return UserError(msg, code="capture_blocked", hint=_CAPTURE_HINT)


def _place(frame: UserFrame | None) -> str:
    if frame is None:
        return ""
    module = f" in module {frame.module_path or '(top)'!r} ({frame.module_class})" if frame.module_class else ""
    return f"{module} at {frame}"
