"""A cache hit gives and records the same as running the kernel."""

import pytest
import torch
from torch import nn
from torch.nn import init

from meta_magic.session.record import record

both = pytest.mark.parametrize("cache", [True, False])


@both
def test_a_complex_tensor_viewed_as_real_is_real_each_time(cache):
    with record(cache=cache):
        x = torch.zeros(3, dtype=torch.complex64)
        views = [torch.view_as_real(x) for _ in range(3)]
    assert [view.dtype for view in views] == [torch.float32] * 3
    assert [tuple(view.shape) for view in views] == [(3, 2)] * 3


@both
def test_a_result_saved_for_backward_has_no_history_of_its_own(cache):
    with record(cache=cache):
        results = [torch.tanh(torch.zeros(3, requires_grad=True)) for _ in range(3)]
    saved = [result.grad_fn._raw_saved_result.data for result in results]
    assert [tensor.grad_fn for tensor in saved] == [None] * 3


@both
def test_a_function_that_writes_an_argument_through_a_view_counts_each_time(cache):
    with record(cache=cache):
        table = nn.Embedding(10, 4, max_norm=1.0)
        before, counts = table.weight._version, []
        for _ in range(3):
            table(torch.zeros(2, dtype=torch.long))
            counts.append(table.weight._version - before)
    assert counts == [1, 2, 3]


@both
@pytest.mark.parametrize("function", [torch.add, torch.mul, torch.mm])
def test_one_tensor_read_twice_is_not_mistaken_for_two(function, cache):
    with record(cache=cache) as trace:
        x, y = torch.ones(5, 5), torch.ones(5, 5)
        for other in (x, y, y, x):
            function(x, other)
    read = [[t.tensor_id for t in call.inputs] for call in trace.ops[2:]]
    assert read == [[0, 0], [0, 1], [0, 1], [0, 0]]


@both
def test_out_that_was_an_argument_before_is_not_mistaken_for_it(cache):
    with record(cache=cache) as trace:
        x, y, z = torch.ones(11), torch.ones(11), torch.ones(11)
        torch.mul(x, y, out=x)
        for _ in range(2):
            assert torch.ops.aten.mul.out(x, y, out=z) is z
    first, *others = trace.ops[3:]
    assert [t.tensor_id for t in first.outputs] == [first.inputs[0].tensor_id]
    assert [[t.tensor_id for t in call.outputs] for call in others] == [
        [call.inputs[2].tensor_id] for call in others
    ]
    assert [call.views for call in others] == [(2,), (2,)]


@both
def test_what_inference_mode_taught_does_not_change_what_gradients_need(cache):
    with record(cache=cache):
        weight = torch.ones(2, 4, requires_grad=True)
        for context in (torch.no_grad, torch.enable_grad, torch.no_grad):
            with context():
                y = nn.functional.linear(torch.ones(3, 4), weight)
            assert y.requires_grad == (context is torch.enable_grad)


def test_default_dtype_set_inside_is_honoured_by_known_signatures():
    before = torch.get_default_dtype()
    with record():
        first = torch.ones(2), torch.arange(3) / 2
        torch.set_default_dtype(torch.float64)
        try:
            second = torch.ones(2), torch.arange(3) / 2
        finally:
            torch.set_default_dtype(before)
    assert [t.dtype for t in first] == [torch.float32] * 2
    assert [t.dtype for t in second] == [torch.float64] * 2


def test_positions_run_no_kernel_again_and_masks_do(ran):
    with record():
        x, at = torch.ones(7, 5), torch.tensor([1, 4])
        for _ in range(3):
            x[at]
            torch.ops.aten.index.Tensor(x, [None, at])
        n_positions = ran.count("aten.index.Tensor")
        for _ in range(3):
            x[torch.arange(7) > 3]
    n_masks = ran.count("aten.index.Tensor") - n_positions
    assert (n_positions, n_masks) == (2, 3)


def test_several_views_run_no_kernel_again(ran):
    with record():
        x = torch.ones(6, 7)
        for _ in range(3):
            x.split(2)
            torch.unbind(x)
            torch.chunk(x, 2, 1)
    names = ("split.Tensor", "unbind.int")
    assert [ran.count(f"aten.{name}") for name in names] == [2, 1]


@both
def test_what_is_written_into_one_of_several_views_counts_for_all(cache):
    with record(cache=cache):
        x = torch.zeros(6)
        for n_writes in (1, 2, 3):
            first, second = x.split(3)
            second.add_(n_writes)
            assert (x._version, first._version) == (n_writes, n_writes)
        assert x.tolist() == [0, 0, 0, 6, 6, 6]


def test_a_tensor_that_is_returned_as_it_is_is_the_same_object():
    for _ in range(3):
        with record():
            x = torch.ones(3)
            assert x.float() is x
            assert x.contiguous() is x
            assert x.to(torch.float32) is x
            assert type(torch.ones(2, 3).sort()) is torch.return_types.sort


def test_a_layer_of_three_dimensions_returns_a_view():
    layer, x = nn.Linear(4, 5, device="meta"), torch.empty(2, 3, 4, device="meta")
    with record(cache=False), torch.no_grad():
        right = layer(x)
    for _ in range(3):
        with record(), torch.no_grad():
            y = layer(x)
            assert (y._is_view(), y._base.shape) == (True, right._base.shape)
            assert (y._version, y._base._version) == (0, 0)
            y.add_(1)
            assert (y._version, y._base._version) == (1, 1)
            assert y._base.untyped_storage() is y.untyped_storage()


def test_an_initializer_on_a_cache_hit_counts_its_write():
    versions = []
    for _ in range(2):
        with record():
            weight = nn.Parameter(torch.empty(3, 2))
            init.kaiming_uniform_(weight)
            init.normal_(weight)
        versions.append(weight._version)

    assert versions == [2, 2]


def _train(n_steps):
    """Train for some steps whose optimizer has another number in each."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0123)
    for _ in range(n_steps):
        model(torch.ones(5, 3)).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def test_a_number_that_changes_runs_no_kernel_again(ran):
    with record():
        x = torch.ones(7, 3)
        for number in (0.5, 0.25, 0.125):
            x.div(number)
            x.add_(x.neg(), alpha=number)
    assert [ran.count(f"aten.{name}.Tensor") for name in ("div", "add_")] == [1, 1]


def test_calls_that_differ_in_a_number_are_recorded_as_without_a_cache():
    traces = []
    for cache in (True, False):
        with record(cache=cache) as trace:
            _train(5)
        traces.append(trace)
    assert list(traces[0].ops) == list(traces[1].ops)


def test_a_tensor_that_is_written_and_read_is_not_taken_for_two(ran):
    with record() as trace:
        x, y = torch.ones(7, 5), torch.ones(7, 5)
        for other in (y, x, y):
            x.addcmul_(other, y, value=0.5)
    calls = [c for c in trace.ops if c.op == "aten.addcmul_.default"]
    storages = [[t.storage_id for t in call.inputs] for call in calls]
    assert storages == [[0, 1, 1], [0, 0, 1], [0, 1, 1]]
    assert ran.count("aten.addcmul_.default") == 2


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


def test_gradients_go_through_a_write_that_was_first_made_without_them():
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
