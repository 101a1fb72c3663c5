"""What would fit, where a module as it was asked for does not."""

from collections import OrderedDict

import psutil
import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.materializing.fitting import list_fitting
from meta_magic.materializing.materialize import prepare

EMPTY = {"init": "empty", "device": "cpu"}


class Encoder(nn.Module):
    """Takes some times the memory that there is, mostly in its last layer."""

    def __init__(self, n_times):
        super().__init__()
        n_rows = int(psutil.virtual_memory().available * n_times) // 4096
        self.layers = nn.ModuleList([nn.Linear(1024, n) for n in (8, 16, n_rows)])


def list_for(n_times, **arguments):
    with record():
        model = Encoder(n_times)
    given = {**EMPTY, **arguments}
    whole = prepare(model, **given)
    assert not whole.fits
    return [*list_fitting(whole, "model", given)]


def test_half_as_many_bytes_may_fit():
    dtype, submodule = list_for(1.3)
    assert dtype.startswith("bfloat16 (")
    # 16 * 1024 weights and 16 biases of 4 bytes each.
    assert submodule == "model.layers[1] (64.1 KiB)"


def test_a_dtype_that_was_chosen_is_not_offered_another_for():
    assert list_for(2.6, dtype=torch.bfloat16) == ["model.layers[1] (32.0 KiB)"]


def test_a_module_in_one_piece_may_fit_in_no_way():
    n_columns = psutil.virtual_memory().available // 4096 * 4
    with record():
        model = nn.Linear(n_columns, 1024, bias=False)
    assert [*list_fitting(prepare(model, **EMPTY), "model", EMPTY)] == []


def test_a_submodule_is_named_as_one_writes_it():
    wide, small = int(psutil.virtual_memory().available) // 4096 * 2, 8
    with record():
        blocks = OrderedDict(narrow=nn.Linear(1024, small), wide=nn.Linear(1024, wide))
        model = nn.Sequential(nn.ModuleDict({"a b": nn.Sequential(blocks)}))
    given = {**EMPTY, "dtype": torch.bfloat16}
    (found,) = list_fitting(prepare(model, **given), "model", given)
    path = found.removesuffix(" (16.0 KiB)")  # 8 rows of 1024, and 8, of 2 bytes
    assert eval(path, {"model": model}) is blocks["narrow"]


@pytest.mark.parametrize(("n_times", "fits"), [(0.01, True), (1.5, False)])
def test_whether_it_fits_is_known_before(n_times, fits):
    with record():
        model = Encoder(n_times)
    assert prepare(model, init="empty").fits == fits
