"""Tensors that torch cannot make: lazy, quantized, or of another layout."""

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, MetaMagicError, materialize, record
from meta_magic.materializing.fills.inits import INITS
from tests.unit.eager import assert_bit_equal, build_twice, is_untouched, tensors_of
from tests.unit.materializing.refusals import holding


def test_a_lazy_parameter_is_an_error_that_says_to_call_the_module():
    with record():
        made = nn.LazyLinear(3)
    with pytest.raises(
        MaterializeError, match=r"'weight': its shape is not known yet: call the module"
    ):
        materialize(made)
    assert isinstance(made.weight, nn.UninitializedParameter)


def test_a_lazy_buffer_is_an_error_that_names_it():
    with record():
        made = nn.LazyBatchNorm1d()
    with pytest.raises(MaterializeError, match="its shape is not known yet"):
        materialize(made)


def test_a_lazy_module_that_was_called_is_none_any_more():
    def called():
        made = nn.LazyLinear(3)
        made(torch.ones(2, 4))
        return made

    real, made, _, _ = build_twice(called)
    materialize(made)
    assert_bit_equal(made, real)


@pytest.mark.parametrize("init", INITS)
def test_a_quantized_tensor_is_an_error_that_names_it(init):
    made = holding(torch.empty(2, 3, dtype=torch.qint8, device="meta"))
    with pytest.raises(MaterializeError, match="'odd': it is quantized"):
        materialize(made, init=init)
    assert made.odd.is_meta


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_tensor_quantized_in_the_cell_is_an_error_there():
    # On meta torch would return a tensor of float32, and say nothing.
    with pytest.raises(MetaMagicError, match=r"not of torch\.qint8"), record():
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


LAYOUTS = {
    "COO": lambda: torch.sparse_coo_tensor(size=(2, 3), device="meta"),
    "CSR": lambda: torch.empty(2, 3, layout=torch.sparse_csr, device="meta"),
    "CSC": lambda: torch.empty(2, 3, layout=torch.sparse_csc, device="meta"),
    "jagged": lambda: torch.nested.nested_tensor_from_jagged(
        torch.empty(5, 2, device="meta"),
        torch.empty(3, dtype=torch.int64, device="meta"),
        min_seqlen=2,
        max_seqlen=3,
    ),
}


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tensor_of_another_layout_is_an_error_that_names_it(layout, init):
    made = nn.Sequential(nn.Linear(2, 2, device="meta"), holding(LAYOUTS[layout]()))
    before = tensors_of(made)
    with pytest.raises(MaterializeError, match=r"cannot materialize '1\.odd': it"):
        materialize(made, init=init)
    assert is_untouched(made, before)


@pytest.mark.parametrize("layout", ["COO", "CSR"])
def test_a_sparse_tensor_made_in_the_cell_is_an_error_that_names_it(layout):
    with record():
        made = holding(LAYOUTS[layout]())
    with pytest.raises(MaterializeError, match="'odd'"):
        materialize(made)


def test_a_list_that_holds_itself_does_no_harm():
    def circular():
        module = nn.Linear(2, 3)
        module.things = [torch.ones(2)]
        module.things.append(module.things)
        module.names = {"attributes": module.__dict__}
        return module

    with record():
        made = circular()
    materialize(made)
    assert made.things[0].tolist() == [1, 1]
