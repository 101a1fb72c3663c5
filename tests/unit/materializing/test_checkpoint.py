"""Checkpoints as the source of materialize(): what they may be, and what they lack."""

import json
import pickle
import struct
from pathlib import Path

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize, record
from tests.unit.eager import assert_bit_equal, build_twice, is_untouched, tensors_of

safetensors = pytest.importorskip("safetensors.torch")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("angles", torch.arange(4.0) / 3, persistent=False)
        self.scale = torch.rand(2)


def pair():
    """Return a real model of other values than the one on meta, and that."""
    _, made, _, _ = build_twice(Model, seed=1)
    torch.manual_seed(2)
    return Model(), made


def save_safetensors(state, folder):
    safetensors.save_file(state, folder / "weights.safetensors")
    return folder / "weights.safetensors"


def save_torch(state, folder):
    torch.save(state, folder / "weights.pt")
    return folder / "weights.pt"


def save_nested(state, folder):
    torch.save({"state_dict": state, "epoch": 3}, folder / "weights.ckpt")
    return folder / "weights.ckpt"


def save_sharded(state, folder):
    names = {}
    for index, (name, tensor) in enumerate(state.items()):
        file = f"model-{index % 2}.safetensors"
        names.setdefault(file, {})[name] = tensor
    for file, part in names.items():
        safetensors.save_file(part, folder / file)
    return save_index(names, folder / "model.safetensors.index.json")


def save_sharded_torch(state, folder):
    names = {}
    for index, (name, tensor) in enumerate(state.items()):
        names.setdefault(f"pytorch_model-{index % 3}.bin", {})[name] = tensor
    for file, part in names.items():
        torch.save(part, folder / file)
    return save_index(names, folder / "pytorch_model.bin.index.json")


def save_index(names, path):
    weight_map = {name: file for file, part in names.items() for name in part}
    path.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


def save_directory(state, folder):
    save_sharded(state, folder)
    return folder


def save_directory_of_one(state, folder):
    save_safetensors(state, folder)
    return folder


def save_directory_of_torch(state, folder):
    torch.save(state, folder / "pytorch_model.bin")
    return str(folder)


SAVERS = {
    "safetensors": save_safetensors,
    "torch": save_torch,
    "nested torch": save_nested,
    "index": save_sharded,
    "index of torch": save_sharded_torch,
    "directory with an index": save_directory,
    "directory with one file": save_directory_of_one,
    "directory with a torch file": save_directory_of_torch,
    "mapping": lambda state, folder: state,
    "text of a path": lambda state, folder: str(save_torch(state, folder)),
}


@pytest.mark.parametrize("kind", SAVERS)
def test_a_checkpoint_fills_what_it_has(kind, tmp_path):
    real, made = pair()
    report = materialize(made, init=SAVERS[kind](real.state_dict(), tmp_path))
    assert_bit_equal(made, real)
    assert report.names("checkpoint") == tuple(real.state_dict())


@pytest.mark.parametrize("kind", SAVERS)
def test_what_a_checkpoint_lacks_is_replayed_and_reported(kind, tmp_path):
    real, made = pair()
    report = materialize(made, init=SAVERS[kind](real.state_dict(), tmp_path))
    assert report.names("replay") == ("angles", "scale")
    torch.manual_seed(1)
    assert torch.equal(made.scale, Model().scale)
    assert torch.equal(made.angles, torch.arange(4.0) / 3)


def test_a_parameter_that_a_checkpoint_lacks_is_replayed():
    real, made = pair()
    state = real.state_dict()
    del state["first.weight"]
    report = materialize(made, init=state)
    torch.manual_seed(1)
    assert torch.equal(made.first.weight, Model().first.weight)
    assert "first.weight" in report.names("replay")


def test_tensors_of_a_mapping_are_assigned_without_a_copy():
    real, made = pair()
    state = real.state_dict()
    materialize(made, init=state)
    addresses = {name: tensor.data_ptr() for name, tensor in made.state_dict().items()}
    assert addresses == {name: tensor.data_ptr() for name, tensor in state.items()}


def test_tensors_of_a_mapping_are_assigned_without_a_copy_on_cpu_0():
    real, made = pair()
    materialize(made, "cpu:0", init=real.state_dict())
    assert made.first.weight.data_ptr() == real.first.weight.data_ptr()


def test_a_mapping_costs_no_memory():
    with record():
        made = nn.Linear(3, 4)
    report = materialize(made, init=nn.Linear(3, 4).state_dict())
    assert report.peak_nbytes == 0


def test_a_mapping_of_parameters_is_as_good():
    real, made = pair()
    materialize(made, init=real.state_dict(keep_vars=True))
    assert_bit_equal(made, real)
    assert type(made.first.weight) is nn.Parameter
    assert made.first.weight is not real.first.weight


def test_the_tensors_of_the_mapping_are_not_changed():
    real, made = pair()
    state = real.state_dict()
    made.first.weight.requires_grad_(False)
    before = {name: tensor.requires_grad for name, tensor in state.items()}
    materialize(made, init=state)
    assert {name: tensor.requires_grad for name, tensor in state.items()} == before


def test_tensors_stay_the_same_objects():
    real, made = pair()
    before = tensors_of(made)
    materialize(made, init=real.state_dict())
    assert all(tensors_of(made)[name] is tensor for name, tensor in before.items())


def test_a_torch_file_is_mapped_and_not_read(tmp_path):
    real, made = pair()
    path = save_torch(real.state_dict(), tmp_path)
    materialize(made, init=path)
    assert str(path) in Path("/proc/self/maps").read_text()


def test_requires_grad_is_that_of_the_module():
    real, made = pair()
    made.first.weight.requires_grad_(False)
    materialize(made, init=real.state_dict())
    assert (made.first.weight.requires_grad, made.first.bias.requires_grad) == (
        False,
        True,
    )


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


def test_a_slice_of_a_larger_tensor_is_assigned_without_a_copy():
    with record():
        made = nn.Linear(3, 2, bias=False)
    large = torch.arange(30.0).view(10, 3)
    materialize(made, init={"weight": large[4:6]})
    assert made.weight.data_ptr() == large[4].data_ptr()
    assert made.weight.tolist() == [[12, 13, 14], [15, 16, 17]]


def test_an_expanded_tensor_is_copied():
    with record():
        made = nn.Linear(3, 2, bias=False)
    materialize(made, init={"weight": torch.arange(3.0).expand(2, 3)})
    with torch.no_grad():
        made.weight[0] = 9
    assert made.weight.tolist() == [[9, 9, 9], [0, 1, 2]]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


@pytest.mark.parametrize(
    "names",
    [["embed.weight"], ["head.weight"], ["embed.weight", "head.weight"]],
)
def test_a_tie_is_kept_whichever_of_its_names_the_checkpoint_has(names):
    _, made, _, _ = build_twice(Tied)
    value = torch.rand(5, 3)
    report = materialize(made, init=dict.fromkeys(names, value))
    assert made.head.weight is made.embed.weight
    assert torch.equal(made.head.weight, value)
    assert report.names("checkpoint") == ("embed.weight", "head.weight")


def test_a_shared_submodule_may_be_named_at_both_places():
    def build():
        linear = nn.Linear(2, 2)
        return nn.Sequential(linear, linear)

    real, made, _, _ = build_twice(build)
    state = {name: tensor + 1 for name, tensor in real.state_dict().items()}
    materialize(made, init=state)
    assert torch.equal(made[1].weight, state["1.weight"])


def test_views_of_one_storage_are_filled_each_from_its_name():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            flat = torch.zeros(6)
            self.low = nn.Parameter(flat[:3])
            self.high = nn.Parameter(flat[3:])

    with record():
        made = Shared()
    state = {"low": torch.arange(3.0), "high": torch.arange(3.0, 6.0)}
    materialize(made, init=state)
    assert (made.low.tolist(), made.high.tolist()) == ([0, 1, 2], [3, 4, 5])
    assert made.low.untyped_storage().data_ptr() == (
        made.high.untyped_storage().data_ptr()
    )


def test_a_view_that_the_checkpoint_lacks_is_not_left_uninitialized_unsaid():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            flat = torch.full((6,), 7.0)
            self.low = nn.Parameter(flat[:3])
            self.high = nn.Parameter(flat[3:])

    with record():
        made = Shared()
    report = materialize(made, init={"low": torch.arange(3.0)})
    filled_by = {tensor.name: tensor.filled_by for tensor in report.tensors}
    assert filled_by["high"] == "uninitialized" or made.high.tolist() == [7, 7, 7]
    assert made.low.tolist() == [0, 1, 2]


def test_an_expanded_buffer_is_filled():
    def build():
        module = nn.Module()
        module.register_buffer("mask", torch.zeros(1, 3).expand(2, 3))
        return module

    with record():
        made = build()
    materialize(made, init={"mask": torch.tensor([[1.0, 2, 3], [1, 2, 3]])})
    assert made.mask.tolist() == [[1, 2, 3], [1, 2, 3]]


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


def test_real_tensors_are_kept():
    made = nn.Linear(3, 4)
    made.bias = nn.Parameter(torch.empty(4, device="meta"))
    weight = made.weight.detach().clone()
    report = materialize(made, init={"bias": torch.arange(4.0)})
    assert torch.equal(made.weight, weight)
    assert report.names("kept") == ("weight",)


def test_a_real_tensor_that_the_checkpoint_has_too_is_not_reported_as_loaded():
    made = nn.Linear(3, 4)
    made.bias = nn.Parameter(torch.empty(4, device="meta"))
    report = materialize(made, init=nn.Linear(3, 4).state_dict())
    assert report.names("checkpoint") == ("bias",)


def test_a_checkpoint_can_be_loaded_within_a_recording(tmp_path):
    real, made = pair()
    path = save_torch(real.state_dict(), tmp_path)
    with record():
        materialize(made, init=path)
    assert_bit_equal(made, real)


def test_the_generator_is_left_alone():
    with record():
        made = nn.Linear(3, 4)
    before = torch.get_rng_state()
    materialize(made, init=nn.Linear(3, 4, device="cpu").state_dict())
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    nn.Linear(3, 4)
    assert torch.equal(torch.get_rng_state(), after)


# Bad checkpoints


def refused(source, match, model=Model):
    """Materialize from a bad checkpoint; the module must stay as it is."""
    with record():
        made = model()
    before = tensors_of(made)
    with pytest.raises(MaterializeError, match=match):
        materialize(made, init=source)
    assert is_untouched(made, before)


def linear():
    return nn.Linear(3, 4)


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


def test_an_index_with_a_damaged_file_is_an_error_that_names_the_file(tmp_path):
    path = save_sharded(Model().state_dict(), tmp_path)
    (tmp_path / "model-1.safetensors").write_bytes(b"damaged")
    refused(path, r"model-1\.safetensors cannot be read")


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
        tmp_path / "bomb.pt", "not unpickled as code.*save it as safetensors", linear
    )


def test_a_whole_module_in_a_file_is_an_error_that_says_why(tmp_path):
    torch.save(nn.Linear(3, 4), tmp_path / "module.pt")
    refused(tmp_path / "module.pt", "holds more than tensors", linear)


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


def test_an_empty_mapping_replays_everything():
    real, made, _, _ = build_twice(Model)
    materialize(made, init={})
    assert_bit_equal(made, real)
