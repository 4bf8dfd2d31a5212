"""The host half of a CUDA bundle: checks of what the launcher is given, pointers, and the sequence of launches per variant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ytk_core.dtypes import ONNX_NUMBER
from ytk_core.formats.plugin_meta import FORMAT_NUMBER, Format
from ytk_gaia.generator.border import Border, KernelTensor
from ytk_gaia.generator.cuda_schedules import Printed
from ytk_gaia.generator.cuda_variants import StorageVariant
from ytk_gaia.generator.index_printer import STORAGE_TYPE, c_type
from ytk_gaia.generator.launcher_text import dims_table, dynamic_checks, extent_constants
from ytk_gaia.generator.lowering import CannotLowerError
from ytk_gaia.generator.memory_plan import Places, Plan
from ytk_gaia.generator.schedules import extent_text


@dataclass(frozen=True)
class DeviceFunction:
    """One nest as device function: its text, what its pointers point at, how it is started."""

    name: str
    printed: Printed
    pointers: tuple[str, ...]
    written: frozenset[str]
    restrict: bool
    linear: int = 0
    """Iterations of its one loop where they may come in any order; 0: it has another form."""


class HostHalf:
    """What an emitter prints for the launcher's compiler; the emitter fills the attributes.

    Attributes:
        plan: Names and sizes.
        border: Inputs and outputs.
        places: Of buffers in the workspace.
        in_place: Root to the output that it is.
        roots: Buffers that have a place in memory.
        pairs_text: C++ text of the bytes of scratch at the end of the workspace; empty: none.
        extents: Names of dynamic extents.
        guards: Conditions on them.
        kernels: In order of execution.
    """

    plan: Plan
    border: Border
    places: Places
    in_place: dict[str, int]
    roots: set[str]
    pairs_text: str
    extents: list[str]
    guards: Sequence[Any]
    kernels: list[DeviceFunction]

    def types(self, variant: StorageVariant) -> dict[str, str]:
        """Give the storage type behind every pointer."""

        def text(tensor: KernelTensor) -> str:
            return c_type(getattr(torch, variant.of(tensor).value), STORAGE_TYPE)

        found = {f"x{k}": text(t) for k, t in enumerate(self.border.inputs)}
        found |= {f"y{k}": text(t) for k, t in enumerate(self.border.outputs)}
        for name, pointer in self.plan.pointers.items():
            root = self.plan.root(name)
            if root in self.in_place:
                found[pointer] = text(self.border.outputs[self.in_place[root]])
            elif pointer not in found and root in self.plan.pointers and self.plan.pointers[root] in found:
                found[pointer] = found[self.plan.pointers[root]]  # a view of an input
            elif pointer not in found:
                found[pointer] = c_type(self.plan.dtypes[name], STORAGE_TYPE)
        return found

    def views(self, variant: StorageVariant) -> dict[str, str]:
        """Give, for pointers at memory that is not linear, the parameters of the view that it is looked at through."""
        found = {}
        for kind, tensors in (("x", self.border.inputs), ("y", self.border.outputs)):
            for k, tensor in enumerate(tensors):
                if variant.format_of(tensor) is Format.HWC8:
                    _, channels, height, width = tensor.shape
                    found[f"{kind}{k}"] = f"{channels}, {height * width}"
        for name, pointer in self.plan.pointers.items():
            root = self.plan.root(name)
            known = (
                found.get(f"y{self.in_place[root]}")
                if root in self.in_place
                else found.get(self.plan.pointers.get(root, ""))
            )
            if known and pointer not in found:
                if name in self.plan.views:
                    raise CannotLowerError([f"a view of {root}, which is not linear"])
                found[pointer] = known
        return found

    def arguments(self, kernel: DeviceFunction) -> str:
        """Print what a kernel is called with."""
        raise NotImplementedError

    def _pointers(self, variant: StorageVariant) -> list[str]:
        plan, types, lines = self.plan, self.types(variant), []
        for kind, array, count in (("x", "in", len(self.border.inputs)), ("y", "out", len(self.border.outputs))):
            for k in range(count):
                c = f"const {types[f'x{k}']}" if kind == "x" else types[f"y{k}"]
                lines.append(f"{c}* const {kind}{k} = ({c}*){array}[{k}].data; (void){kind}{k};")
        for root in plan.storage:
            if root in self.roots:
                c, pointer = types[plan.pointers[root]], plan.pointers[root]
                in_place = root in self.in_place
                place = f"y{self.in_place[root]}" if in_place else f"({c}*)(workspace + {self.places.offsets[root]})"
                lines.append(f"{c}* const {pointer} = {place}; (void){pointer};")
        pending = dict(plan.views)
        while pending:
            for name in [name for name, (base, _) in pending.items() if base not in pending]:
                base, offset = pending.pop(name)
                if plan.root(name) in self.roots:
                    c, pointer = types[plan.pointers[name]], plan.pointers[name]
                    lines.append(
                        f"{c}* const {pointer} = {plan.pointer(base)} + {extent_text(plan.extent(offset))}; (void){pointer};"
                    )
        return lines

    def run_function(
        self, variant: StorageVariant, instances: dict[tuple[str, str], tuple[str, list[str]]]
    ) -> list[str]:
        """Print the sequence of launches of one variant."""
        extents = "".join(f", int64_t {extent}" for extent in self.extents)
        lines = [
            f"int run_{variant.id}(const ytk_context* ctx, const ytk_tensor* in, ytk_tensor* out, char* workspace{extents}) {{",
            "(void)in; (void)out; (void)workspace;",
            *(f"(void){extent};" for extent in self.extents),
            *self.places.declarations,
            *self._pointers(variant),
        ]
        if self.pairs_text:
            lines.append(f"char* const pairs_memory = workspace + {self.places.end};")
        for kernel in self.kernels:
            how, symbol = kernel.printed, instances[kernel.name, variant.id][0]
            start = f"ytk::blocks_for(items, {how.per_block}, {how.most_blocks}), {{{how.threads}}}, 0"
            arguments = self.arguments(kernel)
            lines += [
                f"if (const int64_t items = {how.items}; items > 0) {{",
                f"if (const int bad = {symbol}.launch(ctx, {start}{', ' if arguments else ''}{arguments})) return bad;",
                "}",
            ]
        return [*lines, "return YTK_OK;", "}"]

    def format_table(self, variants: Sequence[StorageVariant], tensors: Sequence[KernelTensor], name: str) -> str:
        """Print the layouts of tensors, per variant."""
        rows = ["{" + ", ".join(str(FORMAT_NUMBER[v.format_of(t)]) for t in tensors) + "}" for v in variants]
        return f"const int32_t {name}[{len(variants)}][{max(1, len(tensors))}] = {{{', '.join(rows)}}};"

    def type_table(self, variants: Sequence[StorageVariant], tensors: Sequence[KernelTensor], name: str) -> str:
        """Print the element types of tensors, per variant."""
        rows = ["{" + ", ".join(str(ONNX_NUMBER[v.of(t)]) for t in tensors) + "}" for v in variants]
        return f"const int32_t {name}[{len(variants)}][{max(1, len(tensors))}] = {{{', '.join(rows)}}};"

    def launcher(self, variants: Sequence[StorageVariant]) -> list[str]:
        """Print ``ytk_launch``: what it is given is checked before anything is started."""
        border, places = self.border, self.places
        lines = [
            'extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int nin, ytk_tensor* out, int nout) {',
            f"if (nin != {len(border.inputs)} || nout != {len(border.outputs)}) return YTK_BAD_ARITY;",
            "if (ctx == nullptr || ctx->size < sizeof(ytk_context) || ctx->abi_version != YTK_ABI_VERSION) return YTK_UNSUPPORTED;",
            f"if (ctx->variant < 0 || ctx->variant >= {len(variants)}) return YTK_BAD_VARIANT;",
        ]
        for kind, tensors in (("in", border.inputs), ("out", border.outputs)):
            for index, tensor in enumerate(tensors):
                place = f"{kind}[{index}], {kind}_types[ctx->variant][{index}], {len(tensor.shape)}, {kind}_dims{index}"
                place += f", {kind}_formats[ctx->variant][{index}]"
                lines += [
                    f"static const int64_t {kind}_dims{index}[] = {dims_table(tensor)};",
                    f"if (int bad = check({place})) return bad;",
                ]
        lines += [*extent_constants(self.plan), *dynamic_checks(self.plan, border, self.guards)]
        lines += [*places.declarations, "char* workspace = nullptr;"]
        if places.end != "0" or self.pairs_text:
            need = f"{places.end} + {self.pairs_text or 0}"
            lines += [
                f"if (ctx->workspace == nullptr || ctx->workspace_bytes < (uint64_t)({need})) return YTK_WORKSPACE_TOO_SMALL;",
                "workspace = (char*)ctx->workspace;",
            ]
        given = ", ".join(["ctx", "in", "out", "workspace", *self.extents])
        lines += [f"if (ctx->variant == {k}) return run_{v.id}({given});" for k, v in enumerate(variants)]
        return [*lines, "return YTK_BAD_VARIANT;", "}"]

    def workspace_function(self) -> list[str]:
        """Print ``ytk_workspace``."""
        return [
            'extern "C" int64_t ytk_workspace(const ytk_context*, const ytk_tensor* in, int, const ytk_tensor*, int) {',
            "(void)in;",
            *extent_constants(self.plan),
            *self.places.declarations,
            f"return {self.places.end} + {self.pairs_text or 0};",
            "}",
        ]
