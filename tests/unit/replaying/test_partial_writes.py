"""Memory without content that is written where values say: known as it is written."""

import pytest
import torch
from torch import nn

from meta_magic import MissingValueError, record

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
    a_part_of_it,
]


@pytest.mark.parametrize("make", WHOLE)
def test_what_is_written_piece_by_piece_has_its_values(make):
    torch.manual_seed(0)
    with record():
        values = make().tolist()
    torch.manual_seed(0)
    assert values == make().tolist()


def test_a_piece_that_nothing_wrote_is_refused():
    with record():
        made = torch.empty(3)
        made[torch.tensor([0, 1])] = 1.0
        with pytest.raises(MissingValueError, match="to some of it, since aten"):
            made.tolist()


def test_what_reads_a_piece_that_nothing_wrote_is_refused():
    with record():
        made = torch.empty(3)
        made[torch.tensor([0, 1])] = 1.0
        total = made.sum()
        with pytest.raises(MissingValueError, match=r"aten\.sum\.default in line \d"):
            total.item()


def test_what_was_chosen_of_memory_without_content_is_refused():
    with record():
        chosen = torch.where(torch.tensor([True, False]), 1.0, torch.empty(2))
        assert chosen[0].item() == 1.0
        with pytest.raises(MissingValueError, match="nothing was written"):
            chosen.tolist()


def test_a_sum_into_memory_without_content_is_refused():
    with record():
        made = torch.empty(2)
        made.index_put_((torch.tensor([0, 1]),), torch.ones(2), accumulate=True)
        with pytest.raises(MissingValueError, match="nothing was written"):
            made.tolist()


def test_it_goes_on_from_a_piece_that_was_read():
    with record():
        made = torch.empty(4, dtype=torch.long)
        made[torch.tensor([0, 1])] = 1
        assert made[:2].tolist() == [1, 1]
        made[torch.tensor([2, 3])] = 5
        assert made.tolist() == [1, 1, 5, 5]


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


def test_a_softmax_over_clusters_is_trained_as_on_the_cpu():
    with record():
        met = train_on_clusters(3)
    assert met == train_on_clusters(3)
