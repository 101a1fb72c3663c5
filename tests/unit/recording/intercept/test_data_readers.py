"""Data loaders and samplers in a cell."""

import io
import re
from collections import namedtuple

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils import data

from meta_magic import ValueLimits, record
from tests.unit.eager import assert_same
from tests.unit.recording.intercept.data_of_cells import (
    describe,
    line_in,
    notes_of,
    pairs,
)


class Numbers(data.Dataset):
    """Rows of numpy arrays, Python numbers and tensors."""

    def __len__(self):
        return 10

    def __getitem__(self, i):
        array = np.full(4, i, dtype=np.float32)
        return array, i, torch.tensor([i, i + 1.0]), torch.from_numpy(array)


def batches(dataset, **options):
    return [tuple(batch) for batch in data.DataLoader(dataset, 8, **options)]


BATCHES = {
    "shuffled": lambda: batches(pairs(), shuffle=True, drop_last=True),
    "by a generator": lambda: batches(
        pairs(), shuffle=True, generator=torch.Generator().manual_seed(3)
    ),
    "pinned": lambda: batches(pairs(), pin_memory=True),
    "of numbers": lambda: batches(Numbers(), shuffle=True),
    "of a split": lambda: batches(data.random_split(pairs(), [0.5, 0.5])[1]),
    "weighted": lambda: list(data.WeightedRandomSampler(torch.ones(9), 5)),
    "with replacement": lambda: list(data.RandomSampler(range(40), True)),
    "a split": lambda: data.random_split(range(20), [15, 5])[0].indices,
    "a split by a generator": lambda: (
        (
            data.random_split(range(9), [4, 5], torch.Generator().manual_seed(42))[1]
        ).indices
    ),
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
    assert_same(train)


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


def test_memory_that_is_shared_with_processes_stays_on_meta_and_is_noted():
    with record() as trace:
        x = torch.ones(3)
        assert x.share_memory_() is x
        model = nn.Linear(2, 2).share_memory()
    assert model.weight.is_meta
    assert "other processes" in notes_of(trace)["process"].text


def test_a_pinned_tensor_stays_on_meta():
    with record():
        assert torch.ones(3).pin_memory().is_meta


# Who reads a tensor as an array: numpy, pandas, matplotlib, Pillow, as on the CPU


def count_pairs():
    """Return counts that plain Python made, as of pairs of letters."""
    counts = torch.zeros(3, 3, dtype=torch.int32)
    for first, second in ((0, 1), (1, 2), (0, 1)):
        counts[first, second] += 1
    return counts


MAKERS = {
    "counts": count_pairs,
    "int64": lambda: torch.arange(12).view(3, 4),
    "int8": lambda: torch.arange(-6, 6, dtype=torch.int8).view(3, 4),
    "uint8": lambda: torch.arange(12, dtype=torch.uint8).view(3, 4),
    "bool": lambda: torch.arange(12).view(3, 4) > 4,
    "half": lambda: torch.arange(12.0).half().view(3, 4),
    "drawn": lambda: torch.randn(3, 4),
    "view": lambda: torch.arange(24).view(4, 6)[1:, 1:5],
    "transposed": lambda: torch.arange(12).view(4, 3).t(),
    "expanded": lambda: torch.arange(4).expand(3, 4),
    "steps": lambda: torch.arange(24.0)[::2].view(3, 4),
    "vector": lambda: torch.arange(5.0),
    "number": lambda: torch.tensor(3),
    "bfloat16": lambda: torch.ones(3, 4).bfloat16(),
    "of a graph": lambda: torch.ones(3, 4, requires_grad=True),
    "conjugated": lambda: torch.randn(3, 4, dtype=torch.cfloat).conj(),
    "negated": lambda: torch.randn(3, 4, dtype=torch.cfloat).conj().imag,
}


def draw(how):
    """Return the pixels of a plot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1, 1))
    canvas = FigureCanvasAgg(figure)
    how(figure.add_subplot())
    canvas.draw()
    return bytes(canvas.buffer_rgba())


def save(tensor):
    """Return the file that numpy writes of a tensor."""
    file = io.BytesIO()
    np.save(file, tensor)
    return file.getvalue()


READERS = {
    "asarray": np.asarray,
    "array of a dtype": lambda x: np.array(x, dtype=np.float64),
    "forced": lambda x: x.numpy(force=True),
    "dlpack": np.from_dlpack,
    "sum": np.sum,
    "concatenate": lambda x: np.concatenate([x, x]),
    "save": save,
    "index": lambda x: np.arange(100)[x],
    "frame": pd.DataFrame,
    "series": pd.Series,
    "image": lambda x: Image.fromarray(x.numpy()).tobytes(),
    "imshow": lambda x: draw(lambda axes: axes.imshow(x)),
    "plot": lambda x: draw(lambda axes: axes.plot(x)),
    "hist": lambda x: draw(lambda axes: axes.hist(x)),
    "scatter": lambda x: draw(lambda axes: axes.scatter(x, x)),
}


def run(make, read):
    """Return what a reader gets of a tensor, with type and layout, or its error."""
    torch.manual_seed(0)
    try:
        found = read(make())
    except (BufferError, RuntimeError, TypeError, ValueError, IndexError) as error:
        return type(error), str(error)
    if isinstance(found, np.ndarray):
        return found.dtype, found.shape, found.strides, found.tobytes()
    if isinstance(found, pd.DataFrame | pd.Series):
        return found.to_csv(), str(found.dtypes)
    return type(found), str(found)


OTHERS = {
    ("number", "series"),  # holds the tensor, whose text has its device
    ("negated", "dlpack"),  # has other strides
}


@pytest.mark.parametrize("made", MAKERS)
@pytest.mark.filterwarnings("ignore")  # of numpy and matplotlib, which are the CPU's
def test_arrays_of_a_tensor_are_those_of_the_cpu(made):
    readers = {name: READERS[name] for name in READERS if (made, name) not in OTHERS}
    with record():
        recorded = {name: run(MAKERS[made], read) for name, read in readers.items()}
    assert recorded == {name: run(MAKERS[made], readers[name]) for name in readers}


# Texts of tensors on meta: the CPU's values, and the place that the code named


Pair = namedtuple("Pair", "a b")  # noqa: PYI024  as notebooks have it


class Marked(torch.Tensor):
    """A subclass that does nothing else."""


def in_a_hook(register):
    def write():
        texts = []
        layer = nn.Linear(2, 3)
        y = layer(torch.ones(4, 2, requires_grad=True))
        register(layer, y, lambda *given: texts.append(f"{given[-1]} {[*given[1:]]}"))
        y.register_hook(lambda grad: texts.append(f"{grad.norm():.3f} {grad[0, 0]}"))
        layer(y[:, :2]).sum().backward()
        return " ".join(texts)

    return write


def in_vmap():
    texts = []
    torch.vmap(lambda x: (texts.append(str(x)), x)[1])(torch.randn(2, 3))
    return texts[0]


WRITTEN = {
    "print": lambda: str(torch.randn(3)),
    "an f-string": lambda: f"{torch.randn(2, 3)} and {torch.arange(3)!r:>3}",
    "format": lambda: " {:>20} ".join("ab").format(torch.randn(())),
    "a list": lambda: str([torch.randn(2), torch.ones(2, dtype=torch.int32)]),
    "a named tuple": lambda: str(Pair(torch.randn(2), torch.ones(1) > 0)),
    "a formatted parameter": lambda: f"{nn.Parameter(torch.tensor(3.0))}",
    "a state dict": lambda: f"{nn.Linear(2, 2).state_dict()}",
    "a subclass": lambda: f"{torch.randn(2, 3).as_subclass(Marked)}",
    "a table": lambda: pd.DataFrame({"a": [torch.ones(()), torch.ones(2)]}).to_string(),
    "a hook of a module": in_a_hook(lambda m, _, f: m.register_forward_hook(f)),
    "a hook of a tensor": in_a_hook(lambda _, y, f: y.register_hook(f)),
    "a hook of a parameter": in_a_hook(
        lambda m, _, f: m.weight.register_post_accumulate_grad_hook(f)
    ),
    "within vmap": in_vmap,
    "nothing": lambda: f"{torch.ones(0, 3)} {torch.ones(0)}",
    "a function of gradients": lambda: str(torch.ones(2, requires_grad=True) * 2),
    "long lines": lambda: str(nn.Linear(5, 20)(torch.ones(5)).exp()),
}


METADATA = re.compile(r",\s+(device='meta'|size=\([\d, ]*\)|dtype=torch\.\w+)")
"""What torch says after the values of a tensor on meta."""


def values_in(text):
    """Return a text without metadata, and without what its length breaks or widens."""
    return re.sub(r"\s+", " ", METADATA.sub("", text)).replace("tensor([])", "[]")


@pytest.mark.parametrize("name", WRITTEN)
def test_a_text_has_the_values_of_the_cpu(name):
    torch.manual_seed(0)
    wanted = WRITTEN[name]()
    with record():
        torch.manual_seed(0)
        met = WRITTEN[name]()
    assert "..." not in met
    assert values_in(met) == values_in(wanted)


PLACED = {
    "values": lambda: torch.ones(3, device="cpu"),
    "nothing": lambda: torch.ones(0, 2, device="cpu"),
    "a parameter": lambda: nn.Parameter(torch.ones(2, 3, device="cpu")),
    "a gradient": lambda: nn.Parameter(torch.ones(2, 13, device="cpu")).exp() * 2,
    "a subclass": lambda: torch.ones(2, 2, device="cpu").as_subclass(Marked),
    "complex": lambda: torch.ones(2, dtype=torch.complex64, device="cpu").conj(),
}


@pytest.mark.parametrize("name", PLACED)
def test_the_text_of_what_lies_on_the_cpu_by_name_is_the_cpus(name):
    assert_same(lambda: str(PLACED[name]()))


def write_all(device=None):
    halves = torch.full((2, 2), 0.5, device=device)
    return f"{halves} {torch.arange(3, device=device)}"


def test_the_text_of_what_lies_nowhere_by_name_has_values_and_metadata():
    # The values are those of ``write_all()`` on the CPU.
    first, second = write_all().replace(") t", "|t").removesuffix(")").split("|")
    with record():
        met = write_all()
    assert met == (
        f"{first}, device='meta', size=(2, 2)) "
        f"{second}, device='meta', size=(3,), dtype=torch.int64)"
    )


def test_the_text_of_what_lies_on_an_accelerator_names_it():
    first, second = write_all().replace(") t", "|t").removesuffix(")").split("|")
    with record():
        met = write_all("cuda:1")
    assert met == f"{first}, device='cuda:1') {second}, device='cuda:1')"


def test_values_beyond_the_limits_are_not_computed_for_a_text():
    with record(limits=ValueLimits(nbytes=64, flops=64)) as trace:
        x = torch.zeros(99)
        near, far = x.to("cpu"), x.to("cuda")
        texts = str(near[1:]), f"{far.int()}"
    assert texts == (
        "tensor(..., size=(98,))",
        "tensor(..., device='cuda:0', size=(99,), dtype=torch.int32)",
    )
    assert not trace.notes


def test_what_is_printed_leaves_no_trace():
    with record() as trace:
        x = torch.ones(3)
        f"{x} {[x]} {nn.Parameter(x)}"
    assert [call.op for call in trace.ops] == ["aten.ones.default"]
    assert not trace.notes


ARRAYS = {
    "numpy": torch.Tensor.numpy,
    "array": torch.Tensor.__array__,
}


@pytest.mark.parametrize("name", ARRAYS)
def test_numpy_takes_no_tensor_of_an_accelerator(name):
    # Torch's words for a device that is none of numpy's.
    with pytest.raises(TypeError) as wanted:
        ARRAYS[name](torch.ones(2, device="meta"))
    with record(), pytest.raises(TypeError) as met:
        ARRAYS[name](torch.ones(2, device="cuda:1"))
    assert str(met.value) == str(wanted.value).replace("meta", "cuda:1")
