"""Operators of torch's database that write into ``out=``, beside the CPU.

One sample of every second, into two of six kinds of tensors in turn; all are run by
``python -m tests.conformance.out_sweep``.
"""

import itertools
import warnings

import pytest
import torch

from meta_magic import record, replay
from meta_magic.errors import MissingValueError, ReplayError
from tests.unit.eager import assert_same

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tests.conformance.operator_samples import OPERATORS, full_name
    from tests.conformance.out_sweep import OUTS, find_difference, samples_of

pytestmark = pytest.mark.filterwarnings("ignore")

WITH_OUT = [op for op in OPERATORS if op.supports_out and torch.float32 in op.dtypes]
BY_VALUES = {
    *("masked_select", "nonzero", "linalg.matrix_rank"),
    *("bernoulli", "multinomial", "geqrf", "lu_solve", "linalg.ldl_solve"),
}
"""Of these more samples are run, into all kinds."""
COUNTED_OTHERWISE = {"diff", "kron", "split_with_sizes_copy"}
"""Of these torch counts other writes into ``out=`` where no mode is on.

``diff`` of order 0 also counts the resize, ``kron`` counts nothing.
"""
KINDS = [*OUTS]
SAMPLED = [
    op
    for number, op in enumerate(WITH_OUT)
    if number % 2 == 0 or op.full_name in BY_VALUES
]


@pytest.mark.parametrize("number", range(len(SAMPLED)), ids=map(full_name, SAMPLED))
def test_out_is_what_it_is_on_the_cpu(number):
    op, first = SAMPLED[number], number % 3
    is_whole = op.full_name in BY_VALUES
    samples = samples_of(op, torch.float32, 5 if is_whole else 1)
    found = [
        f"{kind}: {text}"
        for sample, kind in itertools.product(
            samples, KINDS if is_whole else KINDS[first::3]
        )
        if (text := find_difference(op, sample, kind))
        if not (op.name in COUNTED_OTHERWISE and text.startswith("versions"))
    ]
    assert found == []


DRAWS = {
    "rand": lambda out: torch.rand(3, 4, out=out),
    "randn": lambda out: torch.randn((), out=out),
    "randint": lambda out: torch.randint(9, (3, 4), out=out),
    "randint of two": lambda out: torch.randint(3, 9, (7,), out=out),
    "randperm": lambda out: torch.randperm(5, out=out),
    "normal": lambda out: torch.normal(1.0, 2.0, (4, 4, 2), out=out),
    "bernoulli": lambda out: torch.bernoulli(torch.full((3, 4), 0.5), out=out),
    "multinomial": lambda out: torch.multinomial(torch.ones(20), 18, out=out.long()),
}
GIVEN = {
    "larger": lambda: torch.ones(5, 4),
    "smaller": lambda: torch.ones(2),
    "of no elements": lambda: torch.ones(0),
    "a column": lambda: torch.ones(4, 3).t(),
    "without content": lambda: torch.empty(2, 2),
}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("name", DRAWS)
def test_what_draws_into_out_draws_as_the_cpu_and_so_do_those_after_it(name, given):
    def draw():
        torch.manual_seed(0)
        out = GIVEN[given]()
        made = DRAWS[name](out)
        flat = made.as_strided((made.numel(),), (1,))
        return made.tolist(), made.stride(), flat.tolist(), torch.rand(20).tolist()

    assert_same(draw)


def test_a_view_keeps_what_out_leaves_of_its_base():
    def write():
        base = torch.arange(12.0).view(4, 3)
        view = base.view(-1)
        torch.add(torch.ones(2), 1, out=base)
        torch.empty(3, out=base)
        return base.tolist(), view.tolist()

    assert_same(write)


def test_what_values_size_is_written_into_memory_without_content():
    def write():
        out = torch.empty(7, dtype=torch.long)
        made = torch.nonzero(torch.tensor([0, 1, 1]), out=out)
        mask = torch.tensor([True, False, True])
        chosen = torch.masked_select(torch.arange(3.0), mask, out=torch.empty(9))
        return made is out, out.tolist(), chosen.tolist(), out.stride()

    assert_same(write)


def test_out_on_the_memory_of_an_argument_is_another_tensor():
    def write():
        a = torch.tensor(0.5)
        b = a[...]
        torch.le(torch.tensor([0.0, 1.0]), a, out=b)
        return b

    wanted = write()
    with record() as trace:
        made = write()
    assert torch.equal(replay(trace, made), wanted)


@pytest.mark.parametrize(
    "write",
    [
        lambda a: torch.matmul(a, a.t(), out=a),
        lambda a: torch.addmm(torch.zeros(2, 2), a, a.t(), out=a),
        lambda a: torch.std(a, 0, out=a),
        lambda a: torch.histc(a, 9, out=a),
    ],
)
def test_what_torch_makes_of_an_argument_that_it_resizes_is_refused(write):
    with record() as trace:
        a = torch.ones(2, 4)
        write(a)
        with pytest.raises(MissingValueError, match="which is also its argument"):
            a.sum().item()
    with pytest.raises(ReplayError, match="give it another out="):
        replay(trace, a)


def test_out_that_is_no_argument_or_shrinks_is_computed():
    def write():
        a = torch.full((2, 2), 2.0)
        torch.matmul(a, a.t(), out=torch.empty(7))
        torch.histc(torch.ones(4), 4, out=a)
        torch.histc(a, 2, out=a)
        return a.tolist()

    assert_same(write)
