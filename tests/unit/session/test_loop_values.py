"""Values of loops of small calls, which are run forward, are those of the CPU."""

import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from meta_magic import ValueLimits, record
from meta_magic.errors import ValueLimitError
from meta_magic.replaying import evaluator, loop_values

N = 150
"""Steps of a loop whose calls are enough to be run forward at once."""


@pytest.fixture(autouse=True)
def short_loops(monkeypatch):
    """Run loops forward from fewer calls on than users' loops have."""
    monkeypatch.setattr(loop_values, "MIN_CALLS", 2 * N)


def pairs(n_steps=N):
    return [(i * 7 % 5, i * i % 4) for i in range(n_steps)]


def count(dtype):
    table = torch.zeros((5, 4), dtype=dtype)
    for i, j in pairs():
        table[i, j] += 1
    return table


def count_from_behind():
    table = torch.arange(20).reshape(5, 4)
    for i, j in pairs():
        table[-1 - i, j] -= i
    return table


def count_in_views():
    table = torch.zeros(8, 5)
    columns, rows = table.t(), table[2:6]
    for i, j in pairs():
        columns[i, j] += 0.1
        rows[j, i] *= 1.5
    return table


def write_what_is_read():
    table = torch.linspace(0, 1, 20).view(5, 4)
    row = table[2]
    for i, j in pairs():
        row.add_(table[i] * 0.01)
        table[i, j] = row[j]
    return table


def copy_between_elements():
    table = torch.rand(5, 4, generator=torch.Generator().manual_seed(3))
    for i, j in pairs():
        table[i, j] = table[j, i % 4]
    return table


def sum_of_logarithms():
    chances = torch.rand(5, 4, generator=torch.Generator().manual_seed(0))
    total = 0.0
    for i, j in pairs():
        total += torch.log(chances[i, j])
    return total


def write_between_logarithms():
    chances = torch.rand(5, 4, generator=torch.Generator().manual_seed(0))
    total, kept = torch.zeros(()), []
    for step, (i, j) in enumerate(pairs()):
        kept.append(chances[i, j].log())
        total += kept[-1]
        if not step % 3:
            kept[-1].mul_(2)
        if not step % 13:
            chances[i, j] *= 0.9
        if not step % 55:
            chances[3, 3] = total.exp()
    return torch.stack([total, *kept])


def sum_elements_of_one_table():
    table = torch.rand(5, 4, generator=torch.Generator().manual_seed(0))
    for step, (i, j) in enumerate(pairs()):
        table[0, 1] += table[1, 2].log()
        if not step % 20:
            table[i, j] += table[0, 1]
    return table


def draw():
    torch.manual_seed(0)
    total = torch.zeros(3)
    for _ in range(N):
        total += torch.randn(3) * torch.rand(1)
    return total


def draw_after_a_large_draw():
    torch.manual_seed(0)
    large, total = torch.randn(400, 400), torch.zeros(3)
    for _ in range(N):
        total = total * 0.5 + torch.rand(3)
    return total + large[0, 0]


def rest_on_what_is_large():
    large, small = torch.ones(400, 400), torch.zeros(())
    for _ in range(N):
        large += small
        small = large[0, 0] * 0.5 + 1
    return small


def fill_without_content():
    made = torch.empty(4)
    for i in range(2 * N):
        made.fill_(i % 3)
        made.mul_(0.5)
    return made


def change_sizes():
    grown = torch.zeros(1)
    for i in range(2 * N):
        grown.add_(1)
        if not i % 50:
            grown.resize_(grown.numel() + 1)[-1] = i
    return grown


def swap_memory():
    first, second = torch.zeros(2), torch.ones(2)
    for i in range(N):
        first.add_(second)
        if not i % 10:
            first.data, second.data = second.data, first.data
    return first - 2 * second


def descend():
    weight = torch.zeros(2, requires_grad=True)
    features = torch.tensor([[1.0, 2.0], [-1.0, 0.5], [0.25, -2.0]])
    for _ in range(30):
        loss = torch.sigmoid(features @ weight).log().mean().neg()
        loss.backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
            weight.grad.zero_()
    return weight


def keep_all():
    parts = [torch.ones(2) * i for i in range(N * 2)]
    return torch.stack(parts).sum(0)


def turn_in_place():
    table, rows = torch.rand(4, 5, generator=torch.Generator().manual_seed(1)), []
    for i, j in pairs():
        turned = table.t_() if i % 2 else table.unsqueeze_(0).squeeze_(0)
        rows.append(turned[0] * j)
    return sum(row.sum() for row in rows)


def train_recurrent():
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(6, 8, 2, batch_first=True, bidirectional=True)
    optimizer = torch.optim.Adam(lstm.parameters())
    losses = []
    for _ in range(2):
        lengths = torch.randint(5, 10, (8,)).sort(descending=True).values
        x = torch.randn(8, 10, 6)
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        loss = lstm(packed)[0].data.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


LOOPS = {
    **{str(d): lambda d=d: count(d) for d in (torch.int32, torch.uint8, torch.half)},
    **{
        loop.__name__: loop
        for loop in (
            *(count_from_behind, count_in_views, write_what_is_read),
            *(copy_between_elements, sum_of_logarithms),
            *(write_between_logarithms, sum_elements_of_one_table),
            *(draw, draw_after_a_large_draw),
            *(rest_on_what_is_large, fill_without_content, change_sizes, swap_memory),
            *(descend, keep_all, turn_in_place, train_recurrent),
        )
    },
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_value_after_a_loop_is_that_of_the_cpu(name):
    wanted = LOOPS[name]()
    with record() as trace:
        met = LOOPS[name]()
        values = met.tolist()
    assert values == wanted.tolist()
    assert max(e.n_calls for e in trace.program.evaluations) > N / 4


@pytest.mark.parametrize("name", [name for name in LOOPS if name != "train_recurrent"])
def test_a_value_of_a_later_cell_is_that_of_the_cpu(name):
    wanted = LOOPS[name]() + 1
    with record():
        met = LOOPS[name]()
    with record():
        values = (met + 1).tolist()
    assert values == wanted.tolist()


def test_a_loop_that_reads_what_an_earlier_cell_made_has_the_cpus_values():
    def add(table):
        total = torch.zeros(())
        for i, j in pairs():
            total += table[i, j]
            table[i, j] = total * 0.01
        return total, table

    wanted, written = add(count(torch.float32))
    with record():
        table = count(torch.float32)
    with record():
        met, left = add(table)
        assert (met.item(), left.tolist()) == (wanted.item(), written.tolist())
    with record():
        assert (left * 2).tolist() == (written * 2).tolist()


def read_in_steps(read):
    table, values = torch.zeros((5, 4)), []
    other = torch.full((3,), 2.0)
    for step, (i, j) in enumerate(pairs(60)):
        table[i, j] += 1
        other = other * 0.5 + table[i].sum()
        values.append(read(other[0]))
        if not step % 7:
            other += torch.rand(3, generator=torch.Generator().manual_seed(step))
        if not step % 11:
            values.append(table.tolist())
        if not step % 13:
            table.resize_(6, 4).resize_(5, 4)
    return [*values, table.tolist()]


READS = {
    "item": torch.Tensor.item,
    "float": float,
    "truth": lambda x: bool(x > 9),
    "text": "{:.3f}".format,
    "list": torch.Tensor.tolist,
    "array": lambda x: np.asarray(x).item(),
    "number of elements": lambda x: torch.nonzero(x - 9).shape[0],
}


@pytest.mark.parametrize("name", READS)
def test_values_of_each_step_are_those_of_the_cpu(name):
    wanted = read_in_steps(READS[name])
    with record() as trace:
        met = read_in_steps(READS[name])
    assert met == wanted
    calls = [e.call for e in trace.program.evaluations]
    assert calls == sorted(calls)


def load_in_steps(n_steps=60):
    """Read a value for each item of a batch, as loaders of pictures do."""
    batch, values = [], []
    weight, table = torch.ones(3), torch.tensor([1.0, 2.0, 3.0])
    for step in range(n_steps):
        item = torch.from_numpy(np.full(3, step, np.float32)).div(2)
        deviation = torch.as_tensor([1.0, step % 5, 2.0])
        if (deviation == 0).any():
            deviation += 1
        if step == n_steps // 2:
            table += 10
        batch.append(item.sub_(table).div_(deviation))
        if len(batch) == 8:
            weight = weight * 0.5 + torch.stack(batch).sum(0)
            values.append((weight[0].item(), torch.tensor(step).item()))
            batch = []
    return [*values, table.tolist()]


def write_into_out(n_steps=60):
    """Read a loss in each step; Adam with ``amsgrad`` writes into ``out=``."""
    torch.manual_seed(0)
    layer, table = torch.nn.Linear(3, 2), torch.zeros(3)
    optimizer = torch.optim.AdamW(layer.parameters(), amsgrad=True)
    losses = []
    for step in range(n_steps):
        torch.add(table, step, out=table if step % 2 else torch.empty(3))
        loss = layer(table / 50).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_on_pictures(n_steps=30):
    """Read a loss in each step of a model with convolutions, statistics, attention."""
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.RReLU()]
    model, head = torch.nn.Sequential(*layers), torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.1)
    losses = []
    for step in range(n_steps):
        parts = model(torch.rand(2, 1, 5, 5)).flatten(2).transpose(1, 2).unsqueeze(1)
        dropout = 0.1 * (step % 2)
        seen = F.scaled_dot_product_attention(parts, parts, parts, dropout_p=dropout)
        loss = F.cross_entropy(head(seen.mean((1, 2))), torch.tensor([0, 2]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [*losses, *model[1].running_mean.tolist()]


def look_for_anomalies(n_steps=20):
    """Seed and read in each step; the backward reads each gradient."""
    layer, losses = torch.nn.Linear(3, 2), []
    with torch.autograd.set_detect_anomaly(mode=True):
        for step in range(n_steps):
            torch.manual_seed(step)
            layer.weight.data.normal_()
            loss = F.dropout(layer(torch.rand(4, 3)), 0.5).square().sum()
            loss.backward()
            losses.append((loss + layer.weight.grad.sum()).item())
    return losses


@pytest.mark.parametrize(
    "run", [load_in_steps, write_into_out, train_on_pictures, look_for_anomalies]
)
def test_no_plan_is_needed_once_a_loop_is_run_forward(run, monkeypatch):
    planned = []
    make = evaluator.Evaluator._make
    monkeypatch.setattr(
        evaluator.Evaluator,
        "_make",
        lambda self, *args: planned.append(args) or make(self, *args),
    )
    torch.manual_seed(0)
    wanted = run()
    torch.manual_seed(0)
    with record() as trace:
        assert run() == wanted
    assert len(planned) < 6 < len(trace.program.evaluations)


def test_the_same_rows_are_recorded_with_values_read_forward_or_planned(monkeypatch):
    with record() as forward:
        read_in_steps(torch.Tensor.item)
    monkeypatch.setattr(loop_values, "MIN_VALUES", sys.maxsize)
    with record() as planned:
        read_in_steps(torch.Tensor.item)
    assert bytes(forward.program.words) == bytes(planned.program.words)


def test_a_loop_of_large_calls_takes_no_more_than_is_allowed():
    def run(read):
        parts, total = [], torch.zeros(())
        for i in range(40):
            parts.append(torch.full((2**22,), float(i)))
            total = total * 0.5 + parts[-1][0] + i
            read(total)
        return parts

    values, found = [], []
    run(lambda total: values.append(total.item()))
    limits = ValueLimits(nbytes=2**27)  # 8 of the 40 parts
    with record(limits=limits):
        parts = run(lambda total: found.append(total.item()))
        assert found == values
        with pytest.raises(ValueLimitError, match="MiB"):
            torch.stack(parts).sum().item()
        assert parts[-1][3].item() == 39


def test_a_loop_that_fails_leaves_the_values_of_the_cpu():
    table = count(torch.float32)
    with record():
        made = torch.zeros(5, 4)
        with pytest.raises(IndexError):
            for i, j in [*pairs(), (5, 0)]:
                made[i, j] += 1
        assert made.tolist() == table.tolist()


def test_a_loop_reads_what_numpy_wrote_meanwhile_as_the_cpu_or_refuses():
    def run():
        numbers = np.ones(3, dtype=np.float32)
        real, values = torch.from_numpy(numbers), []
        for step in range(20):
            numbers[1] = step
            values.append((real * 2).sum().item())
        return values

    wanted = run()
    with record():
        assert run() == wanted


def read_functions_of_elements():
    numbers = np.ones(3, dtype=np.float32)
    real, table = torch.from_numpy(numbers), torch.linspace(1, 2, 20).view(5, 4)
    values = []
    for step, (i, j) in enumerate(pairs(100)):
        root = table[i, j].sqrt()
        values += root.item(), root.add_(1).item(), table[i, j].sqrt().item()
        if not step % 9:
            table[i, j] = step
        if not step % 13:
            table.mul_(1.5)
        if step > 50:
            numbers[1] = step
            values.append(real[1].sqrt().item())
    return values


def test_a_function_of_an_element_is_computed_again_once_the_table_is_written():
    wanted = read_functions_of_elements()
    with record():
        assert read_functions_of_elements() == wanted


def test_several_values_compute_nothing_that_they_do_not_use():
    with record() as trace:
        layer = torch.nn.Linear(64, 64)
        for number in range(8):
            (torch.ones(3) * number).sum().item()
    assert layer.weight.is_meta
    assert [e.n_calls for e in trace.program.evaluations] == [3] * 8
