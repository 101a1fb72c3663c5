"""What was meant of modules."""

import pytest

from meta_magic.explain.edits.argument_edits import edit_modules
from tests.unit.explain.made_situations import make_situation, write_edits

WITHOUT = (
    "m.load_state_dict({k: v for k, v in states.items() "
    "if not k.startswith(('fc',))}, strict=False)"
)

PREFIXED = (
    'm.load_state_dict({k.removeprefix("module."): v for k, v in states.items()})'
)

LOAD = "m.load_state_dict(states)"

EMPTY = "ValueError: optimizer got an empty parameter list"

ONE = "ValueError: Expected more than 1 value per channel when training"


@pytest.mark.parametrize(
    ("text", "error", "written"),
    [
        (
            LOAD,
            'Unexpected key(s): "state_dict"',
            'm.load_state_dict(states["state_dict"])',
        ),
        (
            LOAD,
            'Unexpected key(s): "module.fc.weight"',
            PREFIXED,
        ),
        (
            LOAD,
            "size mismatch for fc.weight: copying a param",
            WITHOUT,
        ),
        (
            "self.layers = [nn.Linear(3, 4)]",
            EMPTY,
            "self.layers = nn.ModuleList([nn.Linear(3, 4)])",
        ),
        ("nn.MSELoss(x, y)", "bool value of Tensor", "nn.MSELoss()(x, y)"),
        (
            "net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Linear(72, 4))",
            "mat1 and mat2",
            "net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten(), nn.Linear(72, 4))",
        ),
        ("y = predict(net, x)", ONE, "y = predict(net.eval(), x)"),
    ],
)
def test_what_is_meant_is_written(text, error, written):
    made = make_situation(text, error=error)
    assert written in write_edits(made, edit_modules(made))


def test_states_are_not_loaded_loosely_for_nothing():
    made = make_situation(LOAD, error='Missing key(s) in state_dict: "fc.weight"')
    assert not [
        line for line in write_edits(made, edit_modules(made)) if "strict" in line
    ]
