"""Data loaders and samplers in a cell."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import data

from meta_magic import record
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
