"""Every way in which a model.py can be wrong has its own error, which names the file and the line."""

import pytest

from ytk_client.frontend.load_model import load_model
from ytk_core.errors import UserError

pytestmark = pytest.mark.torch

GOOD_ARGS = "def get_fwd_args():\n    return (torch.randn(2, 3),)\n"
GOOD_MODEL = "class Model(nn.Module):\n    def forward(self, x):\n        return x\n"


def refused(run_prepare, source: str) -> UserError:
    with pytest.raises(UserError) as caught:
        run_prepare(source)
    return caught.value


@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        ("class Model(nn.Module:\n    pass\n", "model_syntax", ["model.py:5", "class Model(nn.Module:"]),
        ("import does_not_exist\n", "model_import_failed", ["model.py:5", "ModuleNotFoundError"]),
        (GOOD_ARGS, "model_incomplete", ["`Model`"]),
        (GOOD_MODEL, "model_incomplete", ["`get_fwd_args`"]),
        ("Model = 3\n" + GOOD_ARGS, "model_incomplete", ["not callable", "int"]),
        ("class Model:\n    pass\n" + GOOD_ARGS, "model_incomplete", ["not an nn.Module"]),
        (
            "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.size = 1 / 0\n"
            + GOOD_ARGS,
            "model_init_failed",
            ["model.py:8", "ZeroDivisionError", "self.size = 1 / 0"],
        ),
        (
            "class Model(nn.Module):\n    def forward(self, x):\n        return x @ x\n" + GOOD_ARGS,
            "model_forward_failed",
            ["model.py:7", "return x @ x", "RuntimeError"],
        ),
        (
            "class Inner(nn.Module):\n    def forward(self, x):\n        raise ValueError('no')\n"
            "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.inner = nn.Sequential(Inner())\n"
            "    def forward(self, x):\n        return self.inner(x)\n" + GOOD_ARGS,
            "model_forward_failed",
            ["model.py:7", "ValueError: no"],
        ),
        (GOOD_MODEL + "def get_fwd_args():\n    return (1, 2)\n", "model_bad_args", ["argument 0 is int"]),
        (GOOD_MODEL + "def get_fwd_args():\n    return {'x': [1.0]}\n", "model_bad_args", ["x holds float"]),
        (GOOD_MODEL + "def get_fwd_args():\n    return 'x'\n", "model_bad_args", ["str"]),
        (GOOD_MODEL + "def get_fwd_args():\n    return ()\n", "model_bad_args", ["no argument"]),
        (GOOD_MODEL + "def get_fwd_args():\n    return (torch.randn(3).to_sparse(),)\n", "model_bad_args", ["sparse"]),
        (GOOD_MODEL + "def get_fwd_args():\n    return [][0]\n", "model_args_failed", ["model.py:9", "IndexError"]),
        (
            "class Model(nn.Module):\n    def forward(self, x):\n        return 3\n" + GOOD_ARGS,
            "model_bad_output",
            ["int"],
        ),
    ],
)
def test_each_fault_has_its_own_error(run_prepare, source, code, words):
    error = refused(run_prepare, source)
    assert error.code == code
    assert error.hint
    for word in words:
        assert word in error.message


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match="nowhere") as caught:
        load_model(tmp_path / "nowhere.py")
    assert caught.value.code == "model_missing"


def test_directory_instead_of_a_file(tmp_path):
    with pytest.raises(UserError) as caught:
        load_model(tmp_path)
    assert caught.value.code == "model_missing"


def test_nothing_is_left_behind_by_a_failure(run_prepare, tmp_path):
    refused(run_prepare, "class Model(nn.Module):\n    def forward(self, x):\n        return x @ x\n" + GOOD_ARGS)
    assert [path.name for path in tmp_path.iterdir()] == ["model.py"]


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("        if x.sum() > 0:\n            return x * 2\n        return x - 1\n", "if x.sum() > 0:"),
        ("        return x[: int(x.abs().sum())]\n", "int(x.abs().sum())"),
    ],
)
def test_data_dependent_model_is_blocked_not_unsupported(run_prepare, body, line):
    source = (
        "class Gate(nn.Module):\n    def forward(self, x):\n"
        + body
        + "class Model(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.head = nn.Sequential(nn.Linear(3, 3), Gate())\n"
        "    def forward(self, x):\n        return self.head(x)\n"
    )
    error = refused(run_prepare, source + GOOD_ARGS)
    assert error.code == "capture_blocked"
    assert "'head.1'" in error.message
    assert line in error.message
    assert "model.py:7" in error.message
    assert "unsupported" not in error.message.lower()


def test_untraceable_model_is_blocked(run_prepare):
    source = "class Model(nn.Module):\n    def forward(self, x):\n        return torch.from_numpy(x.numpy() * 2)\n"
    error = refused(run_prepare, source + GOOD_ARGS)
    assert error.code == "capture_blocked"
    assert "model.py:7" in error.message


def test_a_scripted_part_is_named(run_prepare):
    source = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.ReLU(), torch.jit.script(nn.Linear(3, 3)))

        def forward(self, x):
            return self.body(x)

    def get_fwd_args():
        return (torch.randn(2, 3),)
    """
    with pytest.raises(UserError, match=r"module 'body.1' is a torch\.jit\.ScriptModule") as caught:
        run_prepare(source)
    assert caught.value.code == "capture_blocked"


def test_model_with_state_is_refused(run_prepare):
    source = (
        "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.register_buffer('count', torch.zeros(1))\n"
        "    def forward(self, x):\n        self.count += 1\n        return x + self.count\n"
    )
    error = refused(run_prepare, source + GOOD_ARGS)
    assert error.code == "model_mutates_state"
    assert "count" in error.message


def test_output_paths_are_checked_before_the_model_runs(tmp_path):
    from ytk_client.frontend import PrepareRequest, prepare

    missing = tmp_path / "no_model.py"
    request = PrepareRequest(
        model=missing,
        onnx_out=tmp_path / "a" / "m.onnx",
        npz_out=tmp_path / "b" / "m.npz",
        reference_out=tmp_path / "r.npz",
    )
    with pytest.raises(UserError) as caught:
        prepare(request)
    assert caught.value.code == "npz_not_beside_onnx"
    request = PrepareRequest(
        model=missing, onnx_out=tmp_path / "m", npz_out=tmp_path / "m", reference_out=tmp_path / "r.npz"
    )
    with pytest.raises(UserError) as caught:
        prepare(request)
    assert caught.value.code == "same_output"


def test_model_imports_its_neighbours_and_prints_to_stderr(write_model, capsys):
    write_model("class Inner(nn.Linear):\n    pass\n", name="neighbour_layers.py")
    path = write_model(
        "from neighbour_layers import Inner\nprint('building')\nclass Model(Inner):\n    def __init__(self):\n        super().__init__(3, 3)\n"
        + GOOD_ARGS
    )
    model = load_model(path)
    assert type(model.module).__module__ == "model"
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "building\n")


def test_random_weights_are_the_same_each_time(write_model):
    import torch

    path = write_model("class Model(nn.Linear):\n    def __init__(self):\n        super().__init__(3, 3)\n" + GOOD_ARGS)
    before = torch.random.get_rng_state()
    first, second = load_model(path), load_model(path)
    assert torch.equal(first.module.weight, second.module.weight)
    assert torch.equal(before, torch.random.get_rng_state())
