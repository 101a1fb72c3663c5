"""safetensors in a cell: its files are equal to those of the CPU, to the byte."""

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.errors import ValueLimitError
from meta_magic.trace.options import ValueLimits
from tests.unit.recording.intercept.data_of_cells import notes_of

safetensors = pytest.importorskip("safetensors.torch")


def make_state():
    """Return tensors of many kinds."""
    return {
        "drawn": torch.randn(3, 2),
        "half": torch.randn(3).bfloat16(),
        "empty": torch.empty(0, 2),
        "number": torch.tensor(2.5, dtype=torch.double),
        "mask": torch.randn(4) > 0,
        "parameter": nn.Parameter(torch.ones(2, dtype=torch.int8), requires_grad=False),
        "of a graph": torch.ones(2, requires_grad=True) * 2,
        "part": torch.arange(6)[2:4],
    }


def make_tied():
    """Return a module two of whose parameters are one."""
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    return model


WRITE = {
    "a dictionary": lambda path: safetensors.save_file(
        make_state(), path, metadata={"format": "pt"}
    ),
    "bytes": lambda path: path.write_bytes(safetensors.save(make_state())),
    "ties": lambda path: safetensors.save_model(make_tied(), path),
}


@pytest.mark.parametrize("write", WRITE.values(), ids=WRITE)
def test_a_file_is_that_of_the_cpu_to_the_byte(write, tmp_path):
    for name in ("cpu", "cell"):
        torch.manual_seed(0)
        if name == "cpu":
            write(tmp_path / name)
            continue
        with record() as trace:
            write(tmp_path / name)
    assert (tmp_path / "cell").read_bytes() == (tmp_path / "cpu").read_bytes()
    assert notes_of(trace)["save"].text.startswith("safetensors wrote")


def make_refused():
    """Return dictionaries that safetensors does not write."""
    x = torch.ones(4, 3)
    return [
        {"a": x, "b": x},
        {"a": x, "b": x[1:]},
        {"a": x.t()},
        {"a": torch.eye(2).to_sparse()},
        {"a": 3},
        [x],
    ]


@pytest.mark.parametrize("index", range(6))
def test_what_it_refuses_is_refused_in_its_words(index, tmp_path):
    with pytest.raises((RuntimeError, ValueError)) as real:
        safetensors.save_file(make_refused()[index], tmp_path / "no")
    with record(), pytest.raises(type(real.value)) as recorded:
        safetensors.save_file(make_refused()[index], tmp_path / "no")
    assert sorted(str(recorded.value)) == sorted(str(real.value))  # it has sets in it


def test_parts_of_one_storage_that_do_not_overlap_are_written(tmp_path):
    with record():
        x = torch.arange(6.0)
        safetensors.save_file({"a": x[:2], "b": x[2:]}, tmp_path / "parts")
    assert safetensors.load_file(tmp_path / "parts")["b"].tolist() == [2, 3, 4, 5]


def test_what_takes_too_much_is_refused_by_name(tmp_path):
    limits = ValueLimits(nbytes=10, flops=10)
    with record(limits=limits), pytest.raises(ValueLimitError, match=r"^safetensors"):
        safetensors.save_file({"a": torch.randn(100)}, tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_a_pretrained_model_is_saved_and_loaded(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 11, "n_positions": 4}

    def save(path):
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
        model.save_pretrained(path)
        again = transformers.GPT2LMHeadModel.from_pretrained(path)
        return all(map(torch.equal, model.parameters(), again.parameters()))

    assert save(tmp_path / "cpu")
    with record():
        assert save(tmp_path / "cell")
    for name in ("model.safetensors", "config.json", "generation_config.json"):
        recorded = (tmp_path / "cell" / name).read_bytes()
        assert recorded == (tmp_path / "cpu" / name).read_bytes()
