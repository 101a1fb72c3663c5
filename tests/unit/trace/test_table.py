"""Unit tests of ``trace/summary.py``: all rows at once are what the records say."""

from contextlib import suppress

import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional

from meta_magic import record
from meta_magic.trace.summary import NULLABLE, order_columns


def train():
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.LayerNorm(8), nn.ReLU())
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4)).sum()
        loss.backward()
        optimizer.step()
        loss.item()


def look_and_write():
    x = torch.arange(24.0).view(2, 3, 4)
    x.transpose(0, 1)[1:].mul_(2)
    x[:, 0] = 3
    torch.cat([x, *torch.split(x, 1, 1)], 1)
    torch._foreach_add([x, x + 1, x], 1)
    torch.complex(x, x).conj().abs()
    torch.ones(3, device="cuda") + 1
    x.new_empty(0).to_sparse()


def attend():
    q = torch.ones(1, 2, 4, 8)
    functional.scaled_dot_product_attention(q, q, q)
    nn.MultiheadAttention(8, 2)(q[0], q[0], q[0])


def fail():
    linear = nn.Linear(2, 3)
    linear(torch.ones(4, 2))
    linear(torch.ones(4, 5))


def assume():
    x = torch.ones(4, 5)
    rows = x.nonzero()
    rows.float().sum(0)


def make_one():
    torch.ones(2)


def record_run(run, **options):
    with record(**options) as trace, suppress(RuntimeError):
        run()
    return trace


def read_records(trace, columns):
    """Return the table as its records have it, one by one."""
    rows = [tuple(column.reader(call) for column in columns) for call in trace.ops]
    table = pd.DataFrame(rows, columns=[column.name for column in columns])
    table = table.set_index("index", drop=False)
    table.index.name = None
    absent = [column.name for column in columns if column.type == NULLABLE]
    return table.astype(dict.fromkeys(absent, "Int64"))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("run", [train, look_and_write, attend, fail, assume, make_one])
def test_the_table_is_what_the_records_say(run, device):
    trace = record_run(run, as_device=device)
    expected, table = read_records(trace, order_columns()), trace.to_pandas()
    pd.testing.assert_frame_equal(table, expected)
    for name in table:
        # Equal are also 1 and True, and what only reads alike.
        assert [*map(repr, table[name])] == [*map(repr, expected[name])], name
        assert [*map(type, table[name])] == [*map(type, expected[name])], name


def test_every_column_is_empty_where_nothing_ran():
    table = record_run(lambda: None).to_pandas()
    assert table.shape == (0, len(order_columns()))
