"""Storages of meta tensors that are read: what they hold for real, or an error."""

import pytest
import torch

from meta_magic import MissingValueError, record

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")


def turned():
    return torch.arange(6.0).view(2, 3).t()


READS = {
    "a list of numbers": lambda: list(turned().storage()),
    "as a list": lambda: turned().storage().tolist(),
    "a number": lambda: turned().storage()[-2],
    "bytes": lambda: turned().untyped_storage().tolist(),
    "a byte": lambda: turned().untyped_storage()[6],
    "some bytes": lambda: list(turned().untyped_storage()[4:8]),
    "a wide one of a view": lambda: turned()[:, 1].storage().tolist(),
    "one of halves": lambda: turned().bfloat16().storage().tolist(),
    "none": lambda: torch.ones(0).storage().tolist(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_storage_is_read_as_on_the_cpu(read):
    with record():
        met = read()
    assert met == read()


def test_a_storage_is_read_as_it_is_by_then():
    with record():
        x = torch.zeros(2)
        stored = x.storage()
        x[1] = 5.0
        assert list(stored) == [0.0, 5.0]


@pytest.mark.parametrize("index", [6, -7, "a", slice(2)])
def test_an_index_is_refused_as_on_the_cpu(index):
    with pytest.raises((IndexError, RuntimeError)) as real:
        turned().storage()[index]
    with record(), pytest.raises(real.type) as met:
        turned().storage()[index]
    assert str(met.value) == str(real.value)


def test_a_storage_that_nobody_wrote_is_refused_with_what_made_it():
    with record():
        stored = torch.empty(3).storage()
        with pytest.raises(MissingValueError, match="12 bytes on meta") as error:
            list(stored)
    assert "aten.empty.memory_format in line" in str(error.value)
