"""A write at an index that is answered as a whole does what its operators do."""

import pytest
import torch

from meta_magic.session.record import record

INDICES = {
    "an element": (1, 2),
    "from behind": (-1, -2),
    "a row": (2,),
    "a column": (slice(None), 1),
    "a part": (slice(0, 2), slice(1, 3)),
}


def write(index):
    table, other = torch.zeros(3, 4), torch.arange(12.0).view(3, 4)
    versions = []
    for step in range(4):
        table[index] = other[index]
        table[index] = table[index]
        table[index] = other[index].to(torch.int32)
        table[index] += step
        versions.append(table._version)
    return table, versions


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("name", INDICES)
def test_it_counts_and_writes_as_on_the_cpu(name, cache):
    wanted, counts = write(INDICES[name])
    with record(cache=cache):
        met, versions = write(INDICES[name])
        values = met.tolist()
    assert values == wanted.tolist()
    assert versions == counts


@pytest.mark.parametrize("name", INDICES)
def test_it_is_recorded_as_its_operators_are(name):
    with record(cache=False) as wanted:
        write(INDICES[name])
    with record():
        write(INDICES[name])
    with record() as met:
        write(INDICES[name])
    assert bytes(met.program.words) == bytes(wanted.program.words)
    assert met.program.signatures == wanted.program.signatures


def write_where_gradients_are():
    weight, made = torch.ones(2, requires_grad=True), torch.zeros(2)
    for _ in range(3):
        with torch.no_grad():
            weight[0] = made[1]
    for index in range(2):
        made[index] = weight[index] * 2
    made.sum().backward()
    return weight, weight._version


def test_gradients_go_through_a_write_that_was_answered_without_them():
    wanted, version = write_where_gradients_are()
    with record():
        write_where_gradients_are()
        met, count = write_where_gradients_are()
        assert met.grad.tolist() == wanted.grad.tolist()
        assert met.tolist() == wanted.tolist()
    assert count == version


def test_a_leaf_that_requires_gradients_refuses_the_write_each_time():
    with record():
        weight, value = torch.ones(2, requires_grad=True), torch.zeros(())
        with torch.no_grad():
            for _ in range(3):
                weight[0] = value
        for _ in range(3):
            with pytest.raises(RuntimeError, match="leaf"):
                weight[0] = value
