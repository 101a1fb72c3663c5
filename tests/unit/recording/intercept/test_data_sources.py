"""Data that comes into a cell: loaders, files, arrays, tokenizers."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import data

from meta_magic import MissingValueError, materialize, record

safetensors = pytest.importorskip("safetensors")
from safetensors import torch as safetensors_torch  # noqa: E402


class Numbers(data.Dataset):
    """Rows of numpy arrays, Python numbers and tensors."""

    def __len__(self):
        return 10

    def __getitem__(self, i):
        array = np.full(4, i, dtype=np.float32)
        return array, i, torch.tensor([i, i + 1.0]), torch.from_numpy(array)


def pairs():
    return data.TensorDataset(torch.randn(20, 4), torch.randint(0, 3, (20,)))


def batches(dataset, **options):
    return [tuple(batch) for batch in data.DataLoader(dataset, 8, **options)]


def notes_of(trace):
    return {note.kind: note for note in trace.notes}


def line_in(function, offset):
    return function.__code__.co_firstlineno + offset


def describe(value):
    """Return what there is to say of a value but its device: numbers stay."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype, value.stride()
    if isinstance(value, (list, tuple)):
        return [describe(item) for item in value]
    return value


BATCHES = {
    "in order": lambda: batches(pairs()),
    "shuffled": lambda: batches(pairs(), shuffle=True, drop_last=True),
    "by a generator": lambda: batches(
        pairs(), shuffle=True, generator=torch.Generator().manual_seed(3)
    ),
    "collated": lambda: batches(
        pairs(), collate_fn=lambda rows: [torch.stack([x for x, _ in rows])]
    ),
    "pinned": lambda: batches(pairs(), pin_memory=True),
    "of numbers": lambda: batches(Numbers(), shuffle=True),
    "of a split": lambda: batches(data.random_split(pairs(), [0.5, 0.5])[1]),
    "weighted": lambda: list(data.WeightedRandomSampler(torch.ones(9), 5)),
    "random": lambda: list(data.RandomSampler(range(9), generator=None)),
    "with replacement": lambda: list(data.RandomSampler(range(40), True)),
    "a split": lambda: data.random_split(range(20), [15, 5])[0].indices,
    "a split by a generator": lambda: (
        (
            data.random_split(range(9), [4, 5], torch.Generator().manual_seed(42))[1]
        ).indices
    ),
    "a permutation": lambda: sorted(torch.randperm(10)[:3].tolist()),
    "multinomial": lambda: torch.multinomial(torch.ones(5), 3).tolist(),
}


@pytest.mark.filterwarnings("ignore:'pin_memory'")
@pytest.mark.parametrize("name", BATCHES)
def test_batches_and_indices_are_those_of_the_cpu(name):
    torch.manual_seed(0)
    wanted = BATCHES[name]()
    with record() as trace:
        torch.manual_seed(0)
        met = BATCHES[name]()
    assert describe(met) == describe(wanted)
    assert {note.kind for note in trace.notes} <= {"evaluated"}
    assert all(
        t.is_meta for batch in met if isinstance(batch, tuple) for t in flatten(batch)
    )


def flatten(batch):
    return [t for item in batch for t in (item if isinstance(item, list) else [item])]


def train():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    loader = data.DataLoader(pairs(), 8, shuffle=True, generator=generator)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        for x, y in loader:
            loss = nn.CrossEntropyLoss()(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return loss.item()


def test_a_training_loop_has_the_loss_of_the_cpu():
    wanted = train()
    with record():
        met = train()
    assert met == wanted


def test_workers_are_left_out_and_noted():
    loader = data.DataLoader(
        Numbers(), 5, num_workers=2, timeout=9, persistent_workers=True
    )
    with record() as trace:
        met = [x.sum().item() for x, *_ in loader]
    # 4 times 0 + 1 + 2 + 3 + 4, and 5 + 6 + 7 + 8 + 9.
    assert met == [40, 140]
    assert (loader.num_workers, loader.timeout, loader._iterator) == (2, 9, None)
    note = notes_of(trace)["workers"]
    assert note.line == line_in(test_workers_are_left_out_and_noted, 5)
    assert "not with num_workers=2 (see num_workers=0)" in note.text
    assert "thread" not in notes_of(trace)


def test_a_pinned_tensor_stays_on_meta():
    with record():
        assert torch.ones(3).pin_memory().is_meta


# Real tensors and modules of the cell


def test_a_real_batch_in_a_module_of_the_cell_is_explained():
    loader = data.DataLoader(pairs(), batch_size=20)
    with pytest.raises(RuntimeError) as caught, record():
        model = nn.Linear(4, 3)
        for x, _ in loader:
            model(x)
    (note,) = caught.value.__notes__
    assert "'x' (cpu float32 (20, 4)) is real" in note
    assert "'self.bias' of Linear (meta float32 (3,)) is meta" in note
    assert "mm.meta_like(x)" in note


def test_what_torch_refuses_before_any_operator_is_explained_once():
    real = torch.ones(5, 4)
    with pytest.raises(RuntimeError, match="same device") as caught, record():
        nn.LSTM(4, 3)(real)
    (note,) = caught.value.__notes__
    assert "a view of 'real' (cpu float32 (5, 4)) is real" in note
    assert "'self.weight_ih_l0' of LSTM" in note


def test_an_error_about_something_else_is_left_alone():
    real = torch.ones(3)
    with pytest.raises(RuntimeError, match="Expected size") as caught, record():
        torch.bmm(torch.ones(1, 2, 3), real.view(1, 1, 3))
    assert not hasattr(caught.value, "__notes__")
    with pytest.raises(RuntimeError, match="requires grad") as caught, record():
        torch.ones(3, requires_grad=True).numpy()
    assert not hasattr(caught.value, "__notes__")


def test_a_real_parameter_has_an_advice_of_its_own():
    state = nn.Linear(4, 3).state_dict()
    with pytest.raises(RuntimeError) as caught, record():
        model = nn.Linear(4, 3)
        model.load_state_dict(state, assign=True)
        model(torch.ones(2, 4))
    (note,) = caught.value.__notes__
    assert "'self.bias' of Linear (cpu float32 (3,)) is real" in note
    assert "Build its module in the cell" in note
    assert "assign=True puts real tensors there" in note


# State dicts and files


def save(state, folder):
    torch.save(state, folder / "state.pt")
    safetensors_torch.save_file(state, folder / "state.safetensors")


def open_all(path):
    with safetensors.safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def load_under_the_cpu(path):
    with torch.device("cpu"):
        return torch.load(path)


LOADERS = {
    "torch.load": ("state.pt", lambda p: torch.load(p, map_location="cpu")),
    "mapped": ("state.pt", lambda p: torch.load(p, map_location="cpu", mmap=True)),
    "not only weights": (
        "state.pt",
        lambda p: torch.load(p, "cpu", weights_only=False),
    ),
    "with torch.device": ("state.pt", load_under_the_cpu),
    "load_file": ("state.safetensors", safetensors_torch.load_file),
    "safe_open": ("state.safetensors", open_all),
}


@pytest.mark.parametrize("name", LOADERS)
def test_what_is_loaded_onto_the_cpu_fills_a_module_of_the_cell(name, tmp_path):
    state = nn.Linear(4, 3).state_dict()
    save(state, tmp_path)
    file, load = LOADERS[name]
    with record() as trace:
        model = nn.Linear(4, 3)
        model.load_state_dict(load(tmp_path / file))
        met = model.weight.sum().item()
    assert met == state["weight"].sum().item()
    assert notes_of(trace).keys() == {"evaluated"}
    assert not [call for call in trace.ops if "set_" in call.op]  # prints all bytes
    materialize(model)
    assert torch.equal(model.bias, state["bias"])


def test_load_model_of_safetensors_fills_a_module_of_the_cell(tmp_path):
    state = nn.Linear(4, 3).state_dict()
    save(state, tmp_path)
    with record() as trace:
        model = nn.Linear(4, 3)
        safetensors_torch.load_model(model, tmp_path / "state.safetensors")
    assert trace.notes == ()
    materialize(model)
    assert torch.equal(model.weight, state["weight"])


def test_a_slice_of_a_file_is_on_meta_and_has_values(tmp_path):
    save({"weight": torch.arange(6.0)}, tmp_path)
    with (
        record(),
        safetensors.safe_open(tmp_path / "state.safetensors", framework="pt") as file,
    ):
        met = file.get_slice("weight")[2:4]
        assert met.is_meta
        assert met.tolist() == [2, 3]


def test_torch_load_onto_meta_is_noted(tmp_path):
    save(nn.Linear(4, 3).state_dict(), tmp_path)
    with record() as trace:
        state = torch.load(tmp_path / "state.pt")
    assert all(tensor.is_meta for tensor in state.values())
    note = notes_of(trace)["load"]
    assert note.line == line_in(test_torch_load_onto_meta_is_noted, 3)
    assert "map_location='cpu'" in note.text


def test_a_value_of_a_file_on_meta_is_refused_in_words(tmp_path):
    save({"weight": torch.ones(3)}, tmp_path)
    with pytest.raises(MissingValueError, match="came from outside"), record():
        torch.load(tmp_path / "state.pt")["weight"].sum().item()


@pytest.mark.parametrize(
    "value", [{"epoch": 3}, {"where": "meta", "weight": torch.ones(2)}]
)
def test_torch_load_that_loses_nothing_is_not_noted(value, tmp_path):
    torch.save(value, tmp_path / "x.pt")
    with record() as trace:
        torch.load(tmp_path / "x.pt", map_location=value.get("where"))
    assert trace.notes == ()


def test_torch_save_of_a_module_on_meta_is_noted(tmp_path):
    with record() as trace:
        model = nn.Linear(4, 3)
        torch.save({"epoch": 1, "model": model.state_dict()}, tmp_path / "a.pt")
        torch.save(model, tmp_path / "b.pt")
        torch.save({"epoch": 1}, tmp_path / "c.pt")
    first = line_in(test_torch_save_of_a_module_on_meta_is_noted, 3)
    lines = [note.line for note in trace.notes if note.kind == "save"]
    assert lines == [first, first + 1]


def test_a_state_of_the_cell_is_copied_without_a_note():
    with record() as trace:
        model, target = nn.Linear(4, 3), nn.Linear(4, 3)
        target.load_state_dict(model.state_dict())
        assert torch.equal(target.weight, model.weight)
    assert notes_of(trace).keys() == {"evaluated"}


def test_a_state_on_meta_into_a_real_module_is_noted():
    real = nn.Linear(4, 3)
    with pytest.raises(RuntimeError, match="no data"), record() as trace:
        real.load_state_dict(nn.Linear(4, 3).state_dict())
    assert "into a real module" in notes_of(trace)["load"].text


# Numpy and tokenizers

ARRAYS = {
    "from_numpy": lambda: torch.from_numpy(np.arange(6.0).reshape(2, 3).T),
    "frombuffer": lambda: torch.frombuffer(bytearray(range(8)), dtype=torch.uint8),
    "from_dlpack": lambda: torch.from_dlpack(np.arange(4)),
    "as_tensor": lambda: torch.as_tensor(np.arange(4)),
    "tensor": lambda: torch.tensor(np.arange(4)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_is_on_meta_and_has_values(name):
    wanted = ARRAYS[name]()
    with record() as trace:
        met = ARRAYS[name]()
        assert met.is_meta
        assert met.tolist() == wanted.tolist()
        with torch.device("cpu"):
            assert not ARRAYS[name]().is_meta
    assert describe(met) == describe(wanted)
    assert notes_of(trace).keys() == {"evaluated"}


def test_torch_is_as_before_after_the_cell():
    before = [torch.load, torch.save, torch.from_numpy, data.DataLoader.__iter__]
    with pytest.raises(TypeError, match=r"expected np\.ndarray"), record():
        assert torch.from_numpy is not before[2]
        torch.from_numpy([1])
    after = [torch.load, torch.save, torch.from_numpy, data.DataLoader.__iter__]
    assert after == before


def test_a_tokenizer_feeds_a_module_of_the_cell():
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    words = tokenizers.models.WordLevel({"_": 0, "a": 1, "b": 2}, unk_token="_")
    plain = tokenizers.Tokenizer(words)
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="_", unk_token="_"
    )
    with record():
        made = tokenizer(["a b", "b"], padding=True, return_tensors="pt")
        ids = made.to(nn.Embedding(3, 2).weight.device)["input_ids"]
        assert nn.Embedding(3, 2)(ids).shape == (2, 2, 2)
        assert tokenizer.batch_decode(ids) == ["a b", "b _"]
        arrays = tokenizer(["a b", "b"], padding=True, return_tensors="np")
        assert torch.from_numpy(arrays["input_ids"]).tolist() == [[1, 2], [2, 0]]
