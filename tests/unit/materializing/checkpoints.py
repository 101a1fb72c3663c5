"""Checkpoints of each kind, and models to put them into."""

import json

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize, record
from tests.unit.eager import build_twice, is_untouched, tensors_of

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
