"""Checkpoints that are damaged or do not fit: an error names the part."""

import json
import pickle
import struct
from pathlib import Path

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize
from tests.unit.eager import assert_bit_equal, build_twice, is_untouched, tensors_of
from tests.unit.materializing.checkpoints import (
    Model,
    linear,
    refused,
    save_safetensors,
    save_sharded,
    save_torch,
)

safetensors = pytest.importorskip("safetensors.torch")


def test_a_file_that_is_not_there_is_an_error_that_names_it(tmp_path):
    refused(tmp_path / "no.safetensors", r"there is no checkpoint '.*no\.safetensors'")


@pytest.mark.parametrize("name", ["a.safetensors", "a.pt", "a.bin", "a.json", "a"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0",
        b"nonsense",
        b"PK\x03\x04",
        b"\x80\x04.",
        b"\x80\x02K\x03.",
        b"\xff" * 100,
        b"[]",
        b"3",
        b"{}",
        b'{"weight_map": []}',
        b'{"weight_map": {"weight": 3}}',
        b'{"weight_map": 3}',
        b'{"weight_map": {"weight": ".."}}',
        struct.pack("<Q", 2**62) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 2) + b"{]",
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(content, name, tmp_path):
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, name)


@pytest.mark.parametrize("save", [save_safetensors, save_torch])
@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_an_error_that_says_so(save, part, tmp_path):
    path = save(Model().state_dict(), tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    refused(path, f"{path.name} cannot be read as a checkpoint; it may be damaged")


@pytest.mark.parametrize("save", [save_safetensors, save_torch])
def test_a_file_with_one_flipped_byte_is_read_or_an_error(save, tmp_path):
    path = save(Model().state_dict(), tmp_path)
    content = path.read_bytes()
    for position in range(0, len(content), max(1, len(content) // 60)):
        flipped = bytearray(content)
        flipped[position] ^= 0xFF
        path.write_bytes(flipped)
        _, made, _, _ = build_twice(Model)
        before = tensors_of(made)
        try:
            materialize(made, init=path)
        except MaterializeError:
            assert is_untouched(made, before)


def test_a_dtype_that_torch_lacks_is_an_error_that_names_the_file(tmp_path):
    header = json.dumps({"bias": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}})
    path = tmp_path / "odd.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"\0\0")
    refused(path, r"odd\.safetensors", linear)


def test_a_directory_without_an_index_is_an_error_that_lists_what_it_has(tmp_path):
    for name in ("a.safetensors", "b.safetensors"):
        safetensors.save_file({"weight": torch.ones(4, 3)}, tmp_path / name)
    refused(
        tmp_path, r"without an index.*it has a\.safetensors, b\.safetensors", linear
    )


def test_an_empty_directory_is_an_error_that_says_what_was_wanted(tmp_path):
    refused(tmp_path, r"wanted one of model\.safetensors\.index\.json")


def test_an_index_that_names_a_missing_file_is_an_error_that_names_both(tmp_path):
    path = save_sharded(Model().state_dict(), tmp_path)
    (tmp_path / "model-1.safetensors").unlink()
    refused(path, r"index\.json names model-1\.safetensors, which is not there")


def test_an_index_whose_file_lacks_a_tensor_is_an_error_that_names_it(tmp_path):
    path = save_sharded(nn.Linear(3, 4).state_dict(), tmp_path)
    safetensors.save_file({"other": torch.ones(1)}, tmp_path / "model-0.safetensors")
    refused(path, r"lists 'weight', which model-0\.safetensors lacks", linear)


class Bomb:
    """Leaves a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_a_pickle_with_code_is_an_error_and_the_code_does_not_run(how, tmp_path):
    path, trap = tmp_path / "bomb.pt", tmp_path / "exploded"
    content = {"weight": torch.ones(4, 3), "bias": Bomb(trap)}
    if how == "torch":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content))
    refused(path, r"bomb\.pt", linear)
    assert not trap.exists()


def test_a_pickle_with_code_is_an_error_that_says_why(tmp_path):
    torch.save({"bias": Bomb(tmp_path / "exploded")}, tmp_path / "bomb.pt")
    refused(
        tmp_path / "bomb.pt", "no code of a file is run.*save it as safetensors", linear
    )


def test_a_file_of_the_old_format_is_loaded_or_an_error_that_says_what_to_do(tmp_path):
    path = tmp_path / "old.pt"
    real = nn.Linear(3, 4)
    torch.save(real.state_dict(), path, _use_new_zipfile_serialization=False)
    _, made, _, _ = build_twice(linear)
    materialize(made, init=path)
    assert_bit_equal(made, real)


def test_a_file_that_holds_a_list_is_an_error_that_says_so(tmp_path):
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    refused(tmp_path / "list.pt", r"list\.pt holds a list, not a state dict")


# Names, shapes and tensors of a checkpoint that do not fit the module.


def test_an_unexpected_name_is_an_error_that_lists_what_there_is():
    state = {"model.weight": torch.ones(4, 3), "bias": torch.ones(4)}
    refused(
        state, r"'model\.weight', which the module does not; it has 'weight'", linear
    )


def test_a_wrong_shape_is_an_error_with_both_shapes():
    refused({"weight": torch.ones(3, 4)}, r"\(3, 4\).*\(4, 3\)", linear)


def test_names_and_shapes_are_compared_before_memory():
    def huge():
        return nn.Linear(5_000_000, 5_000_000)

    refused({"weight": torch.ones(2)}, "with shape", huge)


@pytest.mark.parametrize("value", [3, None, "text", [1.0], {"a": torch.ones(1)}])
def test_what_is_no_tensor_is_an_error_that_names_it(value):
    refused({"bias": value}, f"holds a {type(value).__name__} at 'bias'", linear)


def test_a_tensor_on_meta_is_an_error_that_names_it():
    refused({"bias": torch.ones(4, device="meta")}, "'bias' on meta", linear)


def test_a_non_persistent_buffer_in_a_checkpoint_is_unexpected():
    refused({"angles": torch.ones(4)}, "'angles', which the module does not")


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
