"""Checkpoints as the source of materialize(), and the tensors that they lack."""

import json
import pickle
import struct
from pathlib import Path

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize, record
from tests.unit.eager import assert_bit_equal, build_twice, is_untouched, tensors_of
from tests.unit.materializing.checkpoints import (
    SAVERS,
    Model,
    linear,
    pair,
    refused,
    save_safetensors,
    save_sharded,
    save_torch,
)
from tests.unit.materializing.modules import Tied


@pytest.mark.parametrize("kind", SAVERS)
def test_a_checkpoint_fills_its_tensors_and_a_replay_the_others(kind, tmp_path):
    real, made = pair()
    report = materialize(made, init=SAVERS[kind](real.state_dict(), tmp_path))
    assert_bit_equal(made, real)
    assert report.names("checkpoint") == tuple(real.state_dict())
    assert report.names("replay") == ("angles", "scale")
    torch.manual_seed(1)
    assert torch.equal(made.scale, Model().scale)
    assert torch.equal(made.angles, torch.arange(4.0) / 3)


def test_tensors_of_a_mapping_are_assigned_without_a_copy():
    real, made = pair()
    state = real.state_dict()
    materialize(made, init=state)
    addresses = {name: tensor.data_ptr() for name, tensor in made.state_dict().items()}
    assert addresses == {name: tensor.data_ptr() for name, tensor in state.items()}


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_a_mapping_costs_no_memory(device):
    with record():
        made = nn.Linear(3, 4)
    state = nn.Linear(3, 4).state_dict()
    report = materialize(made, device, init=state)
    assert made.weight.data_ptr() == state["weight"].data_ptr()
    assert report.peak_nbytes == 0


def test_a_torch_file_is_mapped_and_not_read(tmp_path):
    real, made = pair()
    path = save_torch(real.state_dict(), tmp_path)
    materialize(made, init=path)
    assert str(path) in Path("/proc/self/maps").read_text()


def test_a_dtype_is_cast_to():
    real, made = pair()
    materialize(made, init=real.state_dict(), dtype=torch.bfloat16)
    assert_bit_equal(made, real.bfloat16())


def test_a_checkpoint_of_another_dtype_takes_that_of_the_module():
    real, made = pair()
    state = {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in real.state_dict().items()
    }
    materialize(made, init=state)
    assert made.first.weight.dtype == torch.float32
    assert torch.equal(made.first.weight, real.first.weight.half().float())


def test_strides_are_those_of_the_module():
    def build():
        return nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)

    _, made, _, _ = build_twice(build)
    real = nn.Conv2d(3, 4, 3)
    materialize(made, init=real.state_dict())
    assert made.weight.stride() == (27, 1, 9, 3)
    assert torch.equal(made.weight, real.weight)


def test_an_expanded_tensor_is_copied():
    with record():
        made = nn.Linear(3, 2, bias=False)
    materialize(made, init={"weight": torch.arange(3.0).expand(2, 3)})
    with torch.no_grad():
        made.weight[0] = 9
    assert made.weight.tolist() == [[9, 9, 9], [0, 1, 2]]


def test_a_parametrized_module_is_filled():
    def build():
        return nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))

    _, made, _, _ = build_twice(build, seed=1)
    torch.manual_seed(2)
    real = build()
    materialize(made, init=real.state_dict())
    assert_bit_equal(made, real)


def test_an_unrecorded_module_can_be_filled_if_nothing_is_missing():
    made, real = nn.Linear(3, 4, device="meta"), nn.Linear(3, 4)
    materialize(made, init=real.state_dict())
    assert_bit_equal(made, real)


def test_what_a_checkpoint_lacks_for_an_unrecorded_module_is_an_error_that_says_so():
    made, real = nn.Linear(3, 4, device="meta"), nn.Linear(3, 4)
    with pytest.raises(MaterializeError, match=r"checkpoint.*lacks|lacks.*checkpoint"):
        materialize(made, init={"weight": real.weight})


def test_a_real_tensor_is_kept_although_the_checkpoint_has_it():
    made = nn.Linear(3, 4)
    made.bias = nn.Parameter(torch.empty(4, device="meta"))
    weight = made.weight.detach().clone()
    report = materialize(made, init=nn.Linear(3, 4).state_dict())
    assert torch.equal(made.weight, weight)
    assert report.names("kept") == ("weight",)
    assert report.names("checkpoint") == ("bias",)


def test_a_checkpoint_can_be_loaded_within_a_recording(tmp_path):
    real, made = pair()
    path = save_torch(real.state_dict(), tmp_path)
    with record():
        materialize(made, init=path)
    assert_bit_equal(made, real)


# Ties, shared submodules and views that a checkpoint fills.


@pytest.mark.parametrize(
    "names", [["embed.weight"], ["head.weight"], ["embed.weight", "head.weight"]]
)
def test_a_tie_is_kept_whichever_of_its_names_the_checkpoint_has(names):
    _, made, _, _ = build_twice(Tied)
    value = torch.rand(10, 4)
    report = materialize(made, init=dict.fromkeys(names, value))
    assert made.head.weight is made.embed.weight
    assert torch.equal(made.head.weight, value)
    assert report.names("checkpoint") == ("embed.weight", "head.weight")


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        flat = torch.full((6,), 7.0)
        self.low = nn.Parameter(flat[:3])
        self.high = nn.Parameter(flat[3:])


def test_views_of_one_storage_are_filled_each_from_its_name():
    with record():
        made = Halves()
    state = {"low": torch.arange(3.0), "high": torch.arange(3.0, 6.0)}
    materialize(made, init=state)
    assert (made.low.tolist(), made.high.tolist()) == ([0, 1, 2], [3, 4, 5])
    assert made.low.untyped_storage().data_ptr() == (
        made.high.untyped_storage().data_ptr()
    )


# Checkpoints that are damaged or do not fit: an error names the part


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
    why = "no code of a file is run.*save it as safetensors" if how == "torch" else ""
    refused(path, rf"bomb\.pt.*{why}|{why}.*bomb\.pt", linear)
    assert not trap.exists()


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


ONES = torch.ones(4)
UNFIT = {
    "an unexpected name": (
        {"model.weight": torch.ones(4, 3), "bias": ONES},
        r"'model\.weight', which the module does not; it has 'weight'",
    ),
    "a wrong shape": ({"weight": torch.ones(3, 4)}, r"\(3, 4\).*\(4, 3\)"),
    "a tensor on meta": ({"bias": ONES.to("meta")}, "'bias' on meta"),
    "a number": ({"bias": 3}, "holds a int at 'bias'"),
    "nothing": ({"bias": None}, "holds a NoneType at 'bias'"),
    "a dictionary": ({"bias": {"a": ONES}}, "holds a dict at 'bias'"),
}


@pytest.mark.parametrize(("state", "words"), UNFIT.values(), ids=UNFIT)
def test_what_does_not_fit_is_an_error_that_names_it(state, words):
    refused(state, words, linear)


def test_names_and_shapes_are_compared_before_memory():
    def huge():
        return nn.Linear(5_000_000, 5_000_000)

    refused({"weight": torch.ones(2)}, "with shape", huge)


def test_a_non_persistent_buffer_in_a_checkpoint_is_unexpected():
    refused({"angles": torch.ones(4)}, "'angles', which the module does not")


ODD = {
    "sparse": lambda: torch.ones(4).to_sparse(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "boolean": lambda: torch.ones(4, dtype=torch.bool),
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
