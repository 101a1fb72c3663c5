"""Whatever a ``%%meta`` cell does or leaves open, torch is as before."""

import pytest
import torch

from tests.integration.session.torch_states import (
    CountOps,
    WatchCalls,
    notes,
    torch_state,
)

UNBALANCED = {
    "a dispatch mode left open": "CountOps().__enter__()",
    "a function mode left open": "WatchCalls().__enter__()",
    "a device left open": "torch.device('cpu').__enter__()",
    "a fake mode left open": "from torch._subclasses import fake_tensor\n"
    "fake_tensor.FakeTensorMode().__enter__()",
    "the default device set to cpu": "torch.set_default_device('cpu')",
    "the default device set to meta": "torch.set_default_device('meta')",
    "a mode left open by an error": "CountOps().__enter__()\n1 / 0",
    "a function mode popped": "from torch.overrides import _pop_mode\n_pop_mode()",
    "a dispatch mode popped": "from torch.utils._python_dispatch import _pop_mode\n"
    "_pop_mode()",
    "two modes left open": "CountOps().__enter__()\nWatchCalls().__enter__()",
}


@pytest.mark.parametrize(
    "ending", ["pass", "1 / 0", "raise SystemExit(2)", "raise KeyboardInterrupt",
               "raise GeneratorExit", "import asyncio\nawait asyncio.sleep(0)\n1 / 0"],
)  # fmt: skip
def test_torch_is_restored_however_the_cell_ends(shell, ending):
    before = torch_state()
    shell.run_cell(f"%%meta\ntorch.ones(2)\n{ending}")
    assert torch_state() == before


@pytest.mark.parametrize("action", UNBALANCED.values(), ids=UNBALANCED.keys())
def test_what_the_cell_left_open_is_closed_and_said_and_the_next_is_on_meta(
    shell, action
):
    before = torch_state()
    shell.run_cell(f"%%meta\n{action}")
    assert torch_state() == before
    assert notes(shell, "state")
    assert shell.run_cell("%%meta\ntorch.ones(1).is_meta").result is True
    torch.set_default_device(None)
    assert torch.get_default_device().type == "cpu"


def test_a_default_device_set_in_the_cell_is_undone_by_name(shell):
    shell.run_cell("%%meta\ntorch.set_default_device('cpu')")
    assert notes(shell, "state") == [
        "torch.set_default_device(cpu) was undone after the cell"
    ]


def test_what_a_cell_sets_on_purpose_stays(shell):
    shell.run_cell("%%meta\ntorch.set_default_dtype(torch.float64)")
    try:
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_default_device_from_before_survives(shell, device):
    torch.set_default_device(device)
    try:
        before = torch_state()
        assert shell.run_cell("%%meta\ntorch.ones(1).is_meta").result is True
        assert torch_state() == before
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("action", UNBALANCED.values(), ids=UNBALANCED.keys())
def test_modes_from_before_survive_whatever_is_left_open(shell, action):
    with CountOps(), WatchCalls():
        before = torch_state()
        shell.run_cell(f"%%meta\n{action}")
        assert torch_state() == before


def test_modes_from_before_see_the_operators_of_the_cell(shell):
    shell.run_cell("%%meta -q\ntorch.ones(2) + 1")  # served from the cache, if anything
    with CountOps() as ops, WatchCalls() as calls:
        shell.run_cell("%%meta -q\nx = torch.ones(2) + 1")
    assert ops.n_ops == 2
    assert [name for name in calls.names if name in {"ones", "add"}] == ["ones", "add"]


def test_the_random_numbers_after_a_cell_are_as_without_it(shell):
    wanted = torch.rand(700)
    torch.manual_seed(0)
    shell.run_cell(
        "%%meta\nmodel = nn.Sequential(nn.Linear(4, 4), nn.Dropout())\n"
        "model(torch.randn(3, 4)).sum().backward()"
    )
    assert torch.equal(torch.rand(700), wanted)
