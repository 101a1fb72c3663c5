"""What storages hold after a replay: uninitialized bytes, and memory that is shared."""

import tracemalloc

import pytest
import torch
from torch import nn
from torch.nn import functional

from meta_magic import MissingValueError, record
from meta_magic.replaying.execution import Execution
from meta_magic.replaying.steps import Request
from tests.conformance.sparse_calls import edges, rows
from tests.unit.replaying.replays import CPU, storages_of


def find_uninitialized(trace, *tensors):
    """Return which of some tensors lie on storages with uninitialized bytes."""
    numbers = storages_of(trace, *tensors)
    request = Request(storages=frozenset(numbers))
    found = Execution(trace.program, request, CPU).uninitialized
    return [number in found for number in numbers]


def filled_in_part():
    x = torch.empty(3)
    x[0] = 1
    return x


def filled_part_by_part():
    x = torch.empty(2, 3)
    x[0].zero_()
    x[1].zero_()
    return x


def filled_by_one_call_for_all(masked=False):
    x, y = torch.arange(3.0), torch.empty(6)
    if masked:  # then uninitialized elements are tracked as values decide
        x[x > 1] = 5.0
    torch._foreach_copy_([y[:3], y[3:]], [x, x])
    return y


def zeroed_by_one_call_for_all():
    x = torch.empty(3)
    torch._foreach_zero_([x])
    return x


def unwritten_noise():
    noise = torch.empty(2)
    torch.ops.aten.rrelu_with_noise(torch.ones(2), noise, 0.1, 0.3)
    return noise


@pytest.mark.parametrize(
    ("make", "is_uninitialized"),
    [
        (lambda: torch.empty(3), True),
        (lambda: torch.zeros(3), False),
        (lambda: torch.empty(3) * 2 + 1, True),
        (filled_in_part, True),
        (filled_part_by_part, False),
        (filled_by_one_call_for_all, False),
        (zeroed_by_one_call_for_all, False),
        (unwritten_noise, True),
    ],
)
def test_a_storage_is_uninitialized_where_no_call_wrote_its_bytes(
    make, is_uninitialized
):
    with record() as trace:
        made = make()
    assert find_uninitialized(trace, made) == [is_uninitialized]


@pytest.mark.parametrize("masked", [False, True])
def test_copies_of_many_into_uninitialized_memory_have_the_values_of_the_cpu(masked):
    with record():
        values = filled_by_one_call_for_all(masked).tolist()
    assert values == filled_by_one_call_for_all(masked).tolist()


@pytest.mark.parametrize("training", [False, True])
def test_rrelu_does_not_read_its_uninitialized_noise(training):
    with record() as trace:
        x = torch.tensor([-1.0, 1.0], requires_grad=True)
        y = functional.rrelu(x, training=training)
        y.sum().backward()
    assert find_uninitialized(trace, y, x.grad) == [False, False]


@pytest.mark.parametrize("wanted", ["input", "weight"])
def test_the_gradient_of_a_convolutions_input_does_not_read_the_input(wanted):
    with record() as trace:
        made = {"input": torch.ones(1, 2, 4, 4), "weight": torch.ones(3, 2, 3, 3)}
        made[wanted] = torch.empty_like(made[wanted])
        sizes = [[3], [1, 1], [0, 0], [1, 1], False, [0, 0], 1]
        mask = [wanted == "input", wanted == "weight", False]
        grads = torch.ops.aten.convolution_backward(
            torch.ones(1, 3, 2, 2), made["input"], made["weight"], *sizes, mask
        )
    gradient = next(g for g in grads if g is not None)
    assert find_uninitialized(trace, gradient) == [False]


EVEN, ODD = [0, 2, 4], [1, 3, 5]


def by_positions():
    made = torch.empty(6)
    made.index_copy_(0, torch.tensor(EVEN), torch.ones(3))
    made.index_fill_(0, torch.tensor(ODD), 2.0)
    return made


def by_a_mask():
    mask, made = torch.tensor([True, False, True]), torch.empty(3, 2)
    made[mask] = 1.0
    made[~mask] = torch.arange(2.0)
    return made


def by_a_filling_mask():
    mask, made = torch.tensor([True, False, True]), torch.empty(3)
    made.masked_fill_(mask, 1.0)
    made.masked_scatter_(~mask, torch.arange(3.0))
    return made * 2


def by_scattering():
    index = torch.tensor([[0, 1, 2], [2, 1, 0]])
    return torch.empty(2, 3).scatter_(1, index, torch.arange(6.0).view(2, 3))


def by_a_permutation():
    order = torch.randperm(8)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(8)
    return inverse


def between_gaps():
    made = torch.empty(4, 6)[:, ::2]
    made[torch.tensor([3, 1])] = 1.0
    made[torch.tensor([0, 2])] = 2.0
    return made


def along_the_last_dimension():
    made = torch.empty(2, 3)
    made[:, torch.tensor([2, 0])] = torch.arange(4.0).view(2, 2)
    made[:, torch.tensor([1])] = 5.0
    return made


def by_choosing():
    made = torch.empty(2, 3)
    for low in (0.0, 3.0, 5.0):
        drawn = torch.arange(6.0).view(2, 3)
        made = torch.where(drawn >= low, drawn * low + 1, made)
    return made


def drawn_until_accepted():
    return torch.distributions.VonMises(0.1, 2.0).sample((20,))


def by_circular_padding():
    return nn.functional.pad(torch.rand(1, 2, 4, 5), (1, 2, 0, 1), mode="circular")


def by_a_circular_convolution():
    layer = nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular")
    layer(torch.rand(1, 1, 4, 4)).sum().backward()
    return layer.weight.grad


def by_copies_of_parts():
    made, copied = torch.empty(4), torch.empty(3, 4, dtype=torch.double)
    made[1:3] = 2.0
    copied.copy_(made)
    copied[:, ::3] = 1.0
    return copied


def by_a_part_of_a_copy():
    made = torch.empty(4, 3).t().contiguous().to(torch.double)
    made[:2] = torch.arange(4.0)
    return made.clone()[:2] + 1


def by_a_smaller_result():
    made = torch.empty(2, 4).clone()
    return torch.sin(torch.arange(3.0), out=made.resize_(0))


def a_part_of_it():
    made = torch.empty(3)
    made[torch.tensor([0, 1])] = 1.0
    return made[:2]


WHOLE = [
    by_positions,
    by_a_mask,
    by_a_filling_mask,
    by_scattering,
    by_a_permutation,
    between_gaps,
    along_the_last_dimension,
    by_choosing,
    drawn_until_accepted,
    by_circular_padding,
    by_a_circular_convolution,
    by_copies_of_parts,
    by_a_part_of_a_copy,
    by_a_smaller_result,
    a_part_of_it,
]


@pytest.mark.parametrize("make", WHOLE)
def test_what_is_written_piece_by_piece_has_its_values_here_and_in_later_cells(make):
    torch.manual_seed(0)
    with record():
        values = make().tolist()
    torch.manual_seed(0)
    with record():
        made = make()
    torch.manual_seed(0)
    wanted = make()
    with record():
        made.mul_(2)
    with record():
        assert (made + 1).tolist() == (wanted * 2 + 1).tolist()
        assert made.tolist() == (wanted * 2).tolist()
    assert values == wanted.tolist()


def test_a_value_computed_from_an_uninitialized_element_is_refused():
    with record():
        made = torch.empty(3)
        made[torch.tensor([0, 1])] = 1.0
        total = made.sum()
        with pytest.raises(MissingValueError, match=r"aten\.sum\.default in line \d"):
            total.item()


def train_on_clusters(n_steps):
    torch.manual_seed(0)
    loss = nn.AdaptiveLogSoftmaxWithLoss(16, 50, cutoffs=[10, 20], div_value=2.0)
    optimizer = torch.optim.SGD(loss.parameters(), 0.1)
    losses = []
    for _ in range(n_steps):
        x, target = torch.randn(8, 16), torch.randint(0, 50, (8,))
        optimizer.zero_grad()
        out = loss(x, target)
        out.loss.backward()
        optimizer.step()
        losses += [out.loss.item(), *out.output.tolist()]
    return losses, loss.predict(x).tolist(), loss.log_prob(x).tolist()


def add_uninitialized():
    return torch.zeros(2**26).add_(torch.empty(2**26))


def write_a_part():
    x = torch.empty(2**36)  # 256 GiB: too much for the value
    x[1:2] = 1
    return x + 1


@pytest.mark.parametrize("make", [add_uninitialized, write_a_part])
def test_a_large_uninitialized_tensor_is_refused_without_a_mask_of_its_bytes(make):
    tracemalloc.start()
    try:
        with record(), pytest.raises(MissingValueError):
            make().sum().item()
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()


def test_a_softmax_over_clusters_is_trained_as_on_the_cpu():
    with record():
        met = train_on_clusters(3)
    assert met == train_on_clusters(3)


pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning")

AT = [[0, 1, 2]]


def values_written():
    values = torch.randn(3)
    made = torch.sparse_coo_tensor(torch.tensor(AT), values, (4,))
    values.mul_(2)
    return made.to_dense()


def values_filled():
    values = torch.randn(3)
    made = torch.sparse_coo_tensor(torch.tensor(AT), values, (4,))
    values.zero_()
    values.copy_(torch.arange(3.0))
    return made.to_dense()


def sparse_written():
    values = torch.randn(3)
    torch.sparse_coo_tensor(torch.tensor(AT), values, (4,)).mul_(2)
    return values


def positions_written():
    at = torch.tensor(AT)
    made = torch.sparse_coo_tensor(at, torch.randn(3), (4,))
    at.add_(1)
    return made.to_dense()


def positions_written_before_they_are_sorted():
    at = torch.tensor([[2, 1, 0]])
    made = torch.sparse_coo_tensor(at, torch.randn(3), (4,))
    at[0, 0] = 1
    return made.coalesce().values()


def own_positions_written():
    made = edges().coalesce()
    made.indices().zero_()
    return made.to_dense()


def own_values_written():
    made = edges().coalesce()
    made.values()[2:].mul_(0.5)
    made.values()[0] = 7
    return made.to_dense()


def written_through_another():
    values, at = torch.randn(3), torch.tensor(AT)
    first = torch.sparse_coo_tensor(at, values, (4,))
    second = torch.sparse_coo_tensor(at.flip(1), values, (4,))
    first.to_dense().sum().item()
    first.mul_(2)
    return second.to_dense()


def values_are_a_view():
    values = torch.randn(6)
    made = torch.sparse_coo_tensor(torch.tensor(AT), values[::2], (4,))
    values.add_(1)
    made._values().mul_(3)
    return torch.cat([values, made.to_dense()])


def detached():
    made = edges()
    other = made.detach()
    made._values().mul_(2)
    return other.to_dense()


def compressed():
    made = rows()
    made.values().mul_(2)
    return made.to_dense()


BLOCKS = [
    *(values_written, values_filled, sparse_written, positions_written),
    *(positions_written_before_they_are_sorted, own_positions_written),
    *(own_values_written, written_through_another, values_are_a_view, detached),
    compressed,
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_sparse_tensor_and_its_values_share_memory(block):
    torch.manual_seed(0)
    wanted = block().tolist()
    torch.manual_seed(0)
    with record():
        assert block().tolist() == wanted
