"""Names, shapes and tensors of a checkpoint that do not fit the module."""

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize
from tests.unit.eager import build_twice, is_untouched, tensors_of
from tests.unit.materializing.checkpoints import linear, refused


def test_an_unexpected_name_is_an_error_that_lists_what_there_is():
    state = {"model.weight": torch.ones(4, 3), "bias": torch.ones(4)}
    refused(
        state, r"'model\.weight', which the module has not; it has 'weight'", linear
    )


def test_a_wrong_shape_is_an_error_with_both_shapes():
    refused({"weight": torch.ones(3, 4)}, r"\(3, 4\).*\(4, 3\)", linear)


def test_names_and_shapes_are_compared_before_memory():
    def huge():
        return nn.Linear(5_000_000, 5_000_000)

    refused({"weight": torch.ones(2)}, "with shape", huge)


def test_a_wrong_number_of_dimensions_is_an_error():
    refused({"bias": torch.tensor(1.0)}, "'bias' with shape", linear)


@pytest.mark.parametrize("value", [3, None, "text", [1.0], {"a": torch.ones(1)}])
def test_what_is_no_tensor_is_an_error_that_names_it(value):
    refused({"bias": value}, f"holds a {type(value).__name__} at 'bias'", linear)


def test_a_tensor_on_meta_is_an_error_that_names_it():
    refused({"bias": torch.ones(4, device="meta")}, "'bias' on meta", linear)


def test_a_non_persistent_buffer_in_a_checkpoint_is_unexpected():
    refused({"angles": torch.ones(4)}, "'angles', which the module has not")


ODD = {
    "sparse": lambda: torch.ones(4).to_sparse(),
    "sparse matrix": lambda: torch.ones(4, 3).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "boolean": lambda: torch.ones(4, dtype=torch.bool),
    "integer": lambda: torch.ones(4, dtype=torch.int64),
    "complex": lambda: torch.ones(4, dtype=torch.complex64),
    "conjugated": lambda: torch.ones(4, dtype=torch.complex64).conj(),
    "with grad": lambda: torch.zeros(4, requires_grad=True) + 1,
    "inference": torch.inference_mode()(lambda: torch.ones(4)),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ODD)
def test_an_odd_tensor_is_loaded_or_an_error_and_nothing_between(kind):
    _, made, _, _ = build_twice(linear)
    before = tensors_of(made)
    name = "weight" if kind == "sparse matrix" else "bias"
    tensor = ODD[kind]()
    refusal = None
    try:
        materialize(made, init={name: tensor})
    except MaterializeError as error:
        refusal = str(error)
    if refusal is None:
        assert (made.get_parameter(name) == 1).all()
        made(torch.ones(2, 3)).sum().backward()
    else:
        assert name in refusal
        assert is_untouched(made, before)
