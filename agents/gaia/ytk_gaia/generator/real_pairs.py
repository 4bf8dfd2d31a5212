"""Complex tensors as pairs of real ones: a pass over a decomposed graph, after which no complex value is left.

No engine has complex tensors, but a region may compute with them inside: a Fourier transform, a polar form. Each complex node
becomes two real ones; Fourier transforms become products with small matrices (:mod:`ytk_gaia.generator.fourier`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ytk_gaia.generator import inductor_adapter as inductor

aten = torch.ops.aten
Node = torch.fx.Node
_CONVERT = torch.ops.prims.convert_element_type.default


class NoRealFormError(Exception):
    """An operator on complex values has no real form here; the message is its name."""


@dataclass(frozen=True)
class Pair:
    """A complex value: nodes of its real and its imaginary part (of one shape and dtype)."""

    re: Any
    im: Any


REAL_OF = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}


class Builder:
    """Adds nodes to a graph, with the value that torch says each has.

    Args:
        module: Gets the constants.
        fake_mode: Computes values.
    """

    def __init__(self, module: torch.fx.GraphModule, fake_mode: Any) -> None:
        self.module, self.fake_mode = module, fake_mode
        self._constants = 0

    def __call__(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """Add one call; give its node."""
        node = self.module.graph.call_function(op, args, kwargs)

        def value(x: Any) -> Any:
            return x.meta["val"] if isinstance(x, Node) else x

        with self.fake_mode:
            node.meta["val"] = op(*torch.fx.node.map_arg(args, value), **torch.fx.node.map_arg(kwargs, value))
        return node

    def constant(self, tensor: torch.Tensor) -> Any:
        """Add a tensor that is known."""
        name = f"_real_pairs_constant{self._constants}"
        self._constants += 1
        self.module.register_buffer(name, tensor)
        node = self.module.graph.get_attr(name)
        node.meta["val"] = self.fake_mode.from_tensor(tensor)
        return node

    # ---- arithmetic ----------------------------------------------------------------------------------------------------

    def add(self, a: Any, b: Any) -> Any:
        """Give a + b, as the next three their operation."""
        return self(aten.add.Tensor, a, b)

    def sub(self, a: Any, b: Any) -> Any:
        """Subtract."""
        return self(aten.sub.Tensor, a, b)

    def mul(self, a: Any, b: Any) -> Any:
        """Multiply."""
        return self(aten.mul.Tensor, a, b)

    def div(self, a: Any, b: Any) -> Any:
        """Divide."""
        return self(aten.div.Tensor, a, b)

    def neg(self, a: Any) -> Any:
        """Negate."""
        return self(aten.neg.default, a)

    def zeros(self, like: Any) -> Any:
        """Give zeros of the shape and dtype of a real node."""
        value = like.meta["val"]
        return self(aten.full.default, list(value.shape), 0.0, dtype=value.dtype, device=value.device)

    def product(self, a: Pair, b: Pair) -> Pair:
        """Multiply two complex values."""
        re = self.sub(self.mul(a.re, b.re), self.mul(a.im, b.im))
        return Pair(re, self.add(self.mul(a.re, b.im), self.mul(a.im, b.re)))

    def quotient(self, a: Pair, b: Pair) -> Pair:
        """Divide two complex values."""
        size = self.add(self.mul(b.re, b.re), self.mul(b.im, b.im))
        top = self.product(a, Pair(b.re, self.neg(b.im)))
        return Pair(self.div(top.re, size), self.div(top.im, size))

    def modulus(self, a: Pair) -> Any:
        """Give the absolute value, without overflow where the result has none."""
        large = self(aten.maximum.default, self(aten.abs.default, a.re), self(aten.abs.default, a.im))
        none = self(aten.eq.Scalar, large, 0)
        scale = self(aten.where.ScalarOther, self(aten.logical_not.default, none), large, 1.0)
        re, im = self.div(a.re, scale), self.div(a.im, scale)
        return self.mul(self(aten.sqrt.default, self.add(self.mul(re, re), self.mul(im, im))), scale)


# ---- operators -------------------------------------------------------------------------------------------------------

# The same operation on the real and the imaginary part: linear with real factors, or only moving elements.
_SEPARATE = frozenset(
    {
        "alias", "cat", "clone", "constant_pad_nd", "contiguous", "copy", "cumsum", "detach", "diagonal", "expand", "flip",
        "gather", "index", "index_select", "lift_fresh_copy", "masked_fill", "mean", "neg", "permute", "repeat", "reshape",
        "roll", "select", "select_scatter", "slice", "slice_scatter", "split", "split_with_sizes", "squeeze", "stack", "sum",
        "as_strided", "t", "transpose", "unbind", "unfold", "unsqueeze", "view", "where", "scatter", "scatter_add", "index_put",
        "diagonal_copy", "select_copy", "view_copy", "tril", "triu", "diag_embed", "_unsafe_view", "_unsafe_index",
    }
)  # fmt: skip


def _complex(b: Builder, x: Any) -> Pair:
    """Take an operand as complex: a pair as it is, a real node with zeros beside it, a number as two."""
    if isinstance(x, Pair):
        return x
    if isinstance(x, complex):
        return Pair(x.real, x.imag)
    if isinstance(x, Node) and isinstance(x.meta.get("val"), torch.Tensor):
        return Pair(x, b.zeros(x))
    return Pair(x, 0.0)


def _scaled(b: Builder, x: Any, alpha: Any) -> Pair:
    pair = _complex(b, x)
    return pair if alpha == 1 else Pair(b.mul(pair.re, alpha), b.mul(pair.im, alpha))


def _filled(b: Builder, x: Pair, like: Pair) -> Pair:
    """Give numbers the shape of the other operand where torch's operators need a tensor first."""
    re = x.re if isinstance(x.re, Node) else b.add(b.zeros(like.re), x.re)
    im = x.im if isinstance(x.im, Node) else b.add(b.zeros(like.re), x.im)
    return Pair(re, im)


def _two(b: Builder, x: Any, y: Any) -> tuple[Pair, Pair]:
    p, q = _complex(b, x), _complex(b, y)
    return (_filled(b, p, q), q) if not isinstance(p.re, Node) else (p, _filled(b, q, p))


def _add(b: Builder, x: Any, y: Any, *, alpha: Any = 1) -> Pair:
    p, q = _two(b, x, _scaled(b, y, alpha))
    return Pair(b.add(p.re, q.re), b.add(p.im, q.im))


def _sub(b: Builder, x: Any, y: Any, *, alpha: Any = 1) -> Pair:
    p, q = _two(b, x, _scaled(b, y, alpha))
    return Pair(b.sub(p.re, q.re), b.sub(p.im, q.im))


def _mul(b: Builder, x: Any, y: Any) -> Pair:
    if not isinstance(y, Pair | complex):
        pair = _complex(b, x)
        return Pair(b.mul(pair.re, y), b.mul(pair.im, y))
    if isinstance(x, Node):
        pair = _filled(b, _complex(b, y), Pair(x, x))
        return Pair(b.mul(x, pair.re), b.mul(x, pair.im))
    return b.product(*_two(b, x, y))


def _div(b: Builder, x: Any, y: Any) -> Pair:
    if not isinstance(y, Pair | complex):
        pair = _complex(b, x)
        return Pair(b.div(pair.re, y), b.div(pair.im, y))
    return b.quotient(*_two(b, x, y))


def _matmul(op: Any) -> Callable[..., Pair]:
    def product(b: Builder, x: Any, y: Any) -> Pair:
        p, q = _complex(b, x), _complex(b, y)
        re = b.sub(b(op, p.re, q.re), b(op, p.im, q.im))
        return Pair(re, b.add(b(op, p.re, q.im), b(op, p.im, q.re)))

    return product


def _exp(b: Builder, x: Pair) -> Pair:
    size = b(aten.exp.default, x.re)
    return Pair(b.mul(size, b(aten.cos.default, x.im)), b.mul(size, b(aten.sin.default, x.im)))


def _angle(b: Builder, x: Pair) -> Any:
    return b(aten.atan2.default, x.im, x.re)


def _log(b: Builder, x: Pair) -> Pair:
    return Pair(b(aten.log.default, b.modulus(x)), _angle(b, x))


def _sgn(b: Builder, x: Pair) -> Pair:
    size = b.modulus(x)
    none = b(aten.eq.Scalar, size, 0)
    safe = b(aten.where.ScalarOther, b(aten.logical_not.default, none), size, 1.0)
    return Pair(b.div(x.re, safe), b.div(x.im, safe))


def _view_as_real(b: Builder, x: Pair) -> Any:
    return b(aten.cat.default, [b(aten.unsqueeze.default, x.re, -1), b(aten.unsqueeze.default, x.im, -1)], -1)


def _view_dtype(b: Builder, x: Any, dtype: torch.dtype) -> Any:
    """Give the same bytes as another type: real and imaginary parts take turns along the last dim."""
    if isinstance(x, Pair):
        shape = list(x.re.meta["val"].shape)
        if REAL_OF.get(dtype) == x.re.meta["val"].dtype:
            return x
        return b(aten.reshape.default, _view_as_real(b, x), [*shape[:-1], 2 * shape[-1]])
    shape = list(x.meta["val"].shape)
    both = b(aten.reshape.default, x, [*shape[:-1], shape[-1] // 2, 2])
    return Pair(b(aten.select.int, both, -1, 0), b(aten.select.int, both, -1, 1))


def _to(b: Builder, x: Any, **kwargs: Any) -> Any:
    dtype = kwargs.pop("dtype", None)
    if dtype in REAL_OF:
        pair = _complex(b, x)
        kind = REAL_OF[dtype]
        return Pair(b(_CONVERT, pair.re, kind), b(_CONVERT, pair.im, kind))
    if isinstance(x, Pair) and dtype is not None:
        return b(_CONVERT, x.re, dtype)  # the imaginary part is dropped, as torch does
    if isinstance(x, Pair):
        return x
    raise NoRealFormError("aten._to_copy")


def _full(b: Builder, size: Sequence[Any], value: Any, **kwargs: Any) -> Pair:
    dtype = REAL_OF[kwargs.get("dtype", torch.complex64)]
    number = complex(value)

    def part(x: float) -> Any:
        return b(aten.full.default, list(size), x, dtype=dtype, device=torch.device("cpu"))

    return Pair(part(number.real), part(number.imag))


def _equal(b: Builder, x: Any, y: Any) -> Any:
    p, q = _two(b, x, y)
    return b(aten.logical_and.default, b(aten.eq.Tensor, p.re, q.re), b(aten.eq.Tensor, p.im, q.im))


def _conjugate(b: Builder, x: Any) -> Any:
    return Pair(x.re, b.neg(x.im)) if isinstance(x, Pair) else x


def _reciprocal(b: Builder, x: Pair) -> Pair:
    size = b.add(b.mul(x.re, x.re), b.mul(x.im, x.im))
    return Pair(b.div(x.re, size), b.neg(b.div(x.im, size)))


_FORMS: dict[str, Callable[..., Any]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "mm": _matmul(aten.mm.default),
    "bmm": _matmul(aten.bmm.default),
    "exp": _exp,
    "log": _log,
    "abs": lambda b, x: b.modulus(x),
    "angle": _angle,
    "sgn": _sgn,
    "eq": _equal,
    "ne": lambda b, x, y: b(aten.logical_not.default, _equal(b, x, y)),
    "reciprocal": _reciprocal,
    "real": lambda _, x: x.re if isinstance(x, Pair) else x,
    "imag": lambda _, x: x.im,
    "_conj": _conjugate,
    "_conj_physical": _conjugate,
    "conj_physical": _conjugate,
    "resolve_conj": lambda _, x: x,
    "resolve_neg": lambda _, x: x,
    "_neg_view": lambda b, x: Pair(b.neg(x.re), b.neg(x.im)),
    "complex": lambda _, x, y: Pair(x, y),
    "polar": lambda b, r, t: Pair(b.mul(r, b(aten.cos.default, t)), b.mul(r, b(aten.sin.default, t))),
    "view_as_real": _view_as_real,
    "view_as_real_copy": _view_as_real,
    "view_as_complex": lambda b, x: Pair(b(aten.select.int, x, -1, 0), b(aten.select.int, x, -1, 1)),
    "square": lambda b, x: b.product(x, x),
    "_to_copy": _to,
    "convert_element_type": lambda b, x, dtype: _to(b, x, dtype=dtype),
    "full": _full,
    "zeros_like": lambda b, x, **_kwargs: Pair(b.zeros(x.re), b.zeros(x.re)),
}


def register(name: str, form: Callable[..., Any]) -> None:
    """Add the real form of an operator (its name without overload)."""
    _FORMS[name] = form


# ---- the pass --------------------------------------------------------------------------------------------------------


def _is_complex(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) and leaf.is_complex() for leaf in inductor.tree_leaves(value))


def has_complex(module: torch.fx.GraphModule) -> bool:
    """Whether any node of a graph is complex."""
    return any(_is_complex(node.meta.get("val")) for node in module.graph.nodes)


def _apart(b: Builder, op: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator on both parts; of several results each is a pair."""

    def side(x: Any, part: str) -> Any:
        if isinstance(x, Pair):
            return getattr(x, part)
        if isinstance(x, complex):
            return x.real if part == "re" else x.imag
        if isinstance(x, list | tuple):
            return type(x)(side(v, part) for v in x)
        return x

    re = b(op, *side(args, "re"), **{k: side(v, "re") for k, v in kwargs.items()})
    im = b(op, *side(args, "im"), **{k: side(v, "im") for k, v in kwargs.items()})
    return Pair(re, im)


def rewrite(module: torch.fx.GraphModule) -> None:
    """Replace every complex node of a graph by real ones, in place.

    Args:
        module: Decomposed; inputs and outputs are real.

    Raises:
        NoRealFormError: An operator has no real form here, or an input or output is complex.
    """
    from ytk_gaia.generator import fourier  # noqa: F401 -- it adds its forms here

    graph = module.graph
    values = [node.meta["val"] for node in graph.nodes if node.op == "placeholder"]
    builder = Builder(module, inductor.fake_mode_of(values))
    pairs: dict[Any, Any] = {}

    def given(x: Any) -> Any:
        if isinstance(x, Node):
            return pairs.get(x, x)
        if isinstance(x, list | tuple):
            return type(x)(given(v) for v in x)
        return x

    for node in list(graph.nodes):
        touched = _is_complex(node.meta.get("val")) or any(n in pairs for n in node.all_input_nodes)
        if not touched:
            continue
        if node.op != "call_function":
            raise NoRealFormError(f"a complex {node.op}")
        args, kwargs = given(node.args), {k: given(v) for k, v in node.kwargs.items()}
        with graph.inserting_before(node):
            found = _one(builder, node, args, kwargs)
        if isinstance(found, Node):
            node.replace_all_uses_with(found)
        else:
            pairs[node] = found
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users:
            graph.erase_node(node)
    module.recompile()


def _one(builder: Builder, node: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if node.target is operator.getitem:
        return Pair(builder(operator.getitem, args[0].re, args[1]), builder(operator.getitem, args[0].im, args[1]))
    name = str(getattr(node.target, "overloadpacket", node.target)).rpartition(".")[2]
    form = _view_dtype if node.target is aten.view.dtype else _FORMS.get(name)
    try:
        if form is not None:
            return form(builder, *args, **kwargs)
        if name in _SEPARATE:
            return _apart(builder, node.target, args, kwargs)
    except (AttributeError, TypeError, RuntimeError, ValueError) as err:
        raise NoRealFormError(f"{node.target} on complex values ({err})"[:200]) from err
    raise NoRealFormError(f"{node.target} on complex values")
