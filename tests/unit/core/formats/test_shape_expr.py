"""Shape expressions: one meaning in Python, in our evaluator and in compiled C."""

import ctypes
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ytk_core.abi import __path__ as abi_path
from ytk_core.errors import FormatError, UserError
from ytk_core.formats.shape_expr import C_HELPERS, Dim, Literal, Operation, dims_of, evaluate, parse, render, to_c

RANKS = (3, 2)
LEAVES = st.one_of(
    st.integers(-9, 40).map(Literal),
    st.builds(Dim, input=st.just(0), axis=st.integers(0, RANKS[0] - 1)),
    st.builds(Dim, input=st.just(1), axis=st.integers(0, RANKS[1] - 1)),
)
OPERATORS = ["+", "-", "*", "//", "ceildiv", "min", "max", "==", "<"]
EXPRESSIONS = st.recursive(
    LEAVES, lambda inner: st.builds(Operation, op=st.sampled_from(OPERATORS), left=inner, right=inner), max_leaves=8
)
DIMS = st.tuples(*(st.lists(st.integers(-1, 30), min_size=rank, max_size=rank) for rank in RANKS)).map(list)


def oracle(text: str, dims: list[list[int]]) -> int:
    """Python itself: -1 where a dim used is unknown, -2 where the shapes are not acceptable."""
    used = [dims[d.input][d.axis] for d in dims_of(parse(text))]
    if any(extent < 0 for extent in used):
        return -1

    class Tensor:
        def __init__(self, extents: list[int]) -> None:
            for axis, extent in enumerate(extents):
                setattr(self, f"d{axis}", extent)

    names = {f"in{i}": Tensor(extents) for i, extents in enumerate(dims)}
    try:
        value = int(eval(text, {"min": min, "max": max, "ceildiv": lambda a, b: -((-a) // b), **names}))
    except ZeroDivisionError:
        return -2
    return value if value >= 0 else -2


def ours(text: str, dims: list[list[int]]) -> int:
    try:
        return evaluate(text, dims)
    except UserError:
        return -2


@given(EXPRESSIONS, DIMS)
@settings(max_examples=400, deadline=None)
def test_evaluation_is_pythons(expr, dims):
    text = render(expr)
    if len(text) <= 256:
        assert parse(text) == expr
        assert ours(text, dims) == oracle(text, dims)


@pytest.fixture(scope="module")
def compile_c(tmp_path_factory):
    directory = tmp_path_factory.mktemp("c")

    def compile_all(texts: list[str]) -> ctypes.CDLL:
        functions = "\n".join(
            f"int64_t f{i}(const ytk_tensor* in) {{ return {to_c(t)}; }}" for i, t in enumerate(texts)
        )
        source = directory / f"f{len(texts)}.c"
        source.write_text(f'#include "ytk_kernel.h"\n{C_HELPERS}\n{functions}\n')
        library = source.with_suffix(".so")
        flags = ["-O1", "-fPIC", "-shared", "-Wall", "-Wno-unused-function", "-I", f"{next(iter(abi_path))}/include"]
        subprocess.run(["gcc", *flags, str(source), "-o", str(library)], check=True, timeout=600)
        return ctypes.CDLL(str(library))

    return compile_all


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("dims", ctypes.c_int64 * 8),
        ("format", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("reserved2", ctypes.c_int32),
    )


HAND = [
    "in0.d0",
    "56",
    "in0.d1 // 9",
    "ceildiv(in0.d2, 2)",
    "(in0.d0 - 3 + 2 * 1) // 2 + 1",
    "min(in0.d1, 100) + max(in1.d0, in1.d1)",
    "(0 - in0.d0) // 4 + 10",
    "ceildiv(0 - in0.d0, 4) + 10",
    "in0.d0 // (in1.d0 - 3)",
    "(in0.d0 == in1.d0) * 7 + (in0.d0 < 5)",
    "ceildiv(in0.d0, in0.d1 // in1.d1)",
    "in0.d0 - 12",
]


def test_c_rendering_equals_evaluation(compile_c):
    """One compilation, every expression over a grid of dims that holds unknown, zero and large extents."""
    library = compile_c(HAND)
    grid = [-1, 0, 1, 3, 7, 12, 2**33]
    for i, text in enumerate(HAND):
        function = getattr(library, f"f{i}")
        function.restype = ctypes.c_int64
        for a in grid:
            for b in grid:
                dims = [[a, b, 9], [b, a]]
                tensors = (Tensor * 2)()
                for tensor, extents in zip(tensors, dims, strict=True):
                    tensor.rank = len(extents)
                    tensor.dims[: len(extents)] = extents
                assert function(tensors) == ours(text, dims) == oracle(text, dims), (text, dims)


def test_c_rendering_of_random_expressions(compile_c):
    expressions = []

    @given(EXPRESSIONS)
    @settings(max_examples=150, deadline=None, database=None, derandomize=True)
    def collect(expr):
        if len(render(expr)) <= 256:
            expressions.append(render(expr))

    collect()
    library = compile_c(expressions)
    for i, text in enumerate(expressions):
        function = getattr(library, f"f{i}")
        function.restype = ctypes.c_int64
        for dims in ([[5, 0, 11], [2, 30]], [[1, 1, 1], [1, 1]], [[-1, 4, 9], [3, 3]], [[30, 17, 2], [0, 7]]):
            tensors = (Tensor * 2)()
            for tensor, extents in zip(tensors, dims, strict=True):
                tensor.dims[: len(extents)] = extents
            assert function(tensors) == ours(text, dims), (text, dims)


BAD = [
    "",
    "in0",
    "in0.d8x",
    "in00.d1",
    "in-1.d0",
    "x.d0",
    "in0.d0 / 2",
    "in0.d0 % 2",
    "in0.d0 ** 2",
    "in0.d0 > 2",
    "in0.d0 != 2",
    "0 < in0.d0 < 2",
    "in0.d0 and 1",
    "not in0.d0",
    "~in0.d0",
    "-in0.d0",
    "abs(in0.d0)",
    "min(1)",
    "min(1, 2, 3)",
    "min(1, key=2)",
    "min(*[1, 2])",
    "ceildiv(in0.d0)",
    "in0.d0 if 1 else 2",
    "lambda: 1",
    "[1][0]",
    "1.5",
    "1e3",
    "'4'",
    "True",
    "None",
    "in0.d0; 1",
    "in0.d0 = 1",
    "in0.d0 +",
    "(" * 150 + "1" + ")" * 150,
    "1 + " * 200 + "1",
    "9223372036854775808",
    "in0.d0\x00",
    "__import__('os').system('true')",
]


@pytest.mark.parametrize("text", BAD)
def test_it_is_refused(text):
    with pytest.raises(FormatError) as caught:
        parse(text)
    assert caught.value.code == "bad_shape_expression"
    assert "Allowed:" in caught.value.hint


def test_a_missing_dim_is_a_format_error():
    for text in ("in2.d0", "in0.d3"):
        with pytest.raises(FormatError, match="does not exist"):
            evaluate(text, [[1, 2, 3], [4, 5]])


def test_overflow_is_refused():
    with pytest.raises(UserError, match="int64"):
        evaluate("in0.d0 * in0.d0 * in0.d0", [[2**40]])
