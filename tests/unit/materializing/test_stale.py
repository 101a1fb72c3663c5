"""A write outside of any recording is noticed, and a write inside is not refused."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional

from meta_magic import MaterializeError, MissingValueError, materialize, record
from tests.unit.eager import assert_bit_equal, build_twice
from tests.unit.materializing.modules import register


def written_by_data():
    x = torch.zeros(3)
    x.data.fill_(1)
    return x


def written_by_set():
    x = torch.zeros(3)
    x.set_(torch.ones(3))
    return x


def written_by_foreach():
    x = torch.zeros(3)
    torch._foreach_add_([x], 1)
    return x


def trained(**options):
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=0.1, **options)
    weight.sum().backward()
    optimizer.step()
    return weight.detach()


def truncated():
    x = torch.zeros(3)
    return nn.init.trunc_normal_(x)


def normalized():
    mean, var = torch.zeros(3), torch.ones(3)
    functional.batch_norm(torch.arange(12.0).view(4, 3), mean, var, training=True)
    return mean


def resized(*sizes):
    x = torch.zeros(3)
    return x.resize_(sizes)


WRITES = {
    "a resize": lambda: resized(2),
    "a resize to what it was": lambda: resized(3),
    "out=": lambda: torch.randn(3, out=torch.empty(3)),
    "data": written_by_data,
    "data of what is set": written_by_set,
    "foreach": written_by_foreach,
    "fused optimizer": lambda: trained(fused=True),
    "foreach optimizer": lambda: trained(foreach=True),
    "initializer": truncated,
    "statistics": normalized,
    "an operator": lambda: torch.zeros(3).add_(1),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_outside_after_one_inside_is_refused_also_in_a_later_cell(name):
    with record():
        x = WRITES[name]()
    x.add_(5)
    with pytest.raises(MaterializeError, match="'buffer': it was changed in place"):
        materialize(register(x))
    with record(), pytest.raises(MissingValueError, match="changed in place outside"):
        x.tolist()


@pytest.mark.parametrize("name", WRITES)
def test_what_was_written_inside_of_one_cell_or_two_is_not_refused(name):
    real, made, _, _ = build_twice(lambda: register(WRITES[name]()))
    with record():
        made.buffer.data.mul_(2)
        assert made.buffer.tolist() == real.buffer.mul_(2).tolist()
    materialize(made)
    assert_bit_equal(made, real)


def test_a_write_outside_through_an_alias_made_inside_is_refused():
    with record():
        made = nn.Linear(2, 2)
        kept = made.weight.data
    kept.add_(1)
    with pytest.raises(MaterializeError, match="'weight': it was changed in place"):
        materialize(made)


def test_an_alias_that_is_gone_and_was_not_written_is_no_reason_to_refuse():
    def build():
        module = nn.Linear(2, 2)
        kept.append(module.weight.data.mul_(2))
        return module

    kept = []
    real, made, _, _ = build_twice(build)
    kept.clear()
    materialize(made)
    assert_bit_equal(made, real)


def test_an_alias_that_took_another_place_and_was_written_there_is_no_reason_either():
    with record():
        x = torch.ones(2)
        kept = x.data
    kept.data = torch.zeros(2, device="meta")
    kept.add_(1)
    made = register(x)
    materialize(made)
    assert made.buffer.tolist() == [1, 1]


def test_a_write_outside_is_noticed_where_the_next_cell_writes_by_data():
    with record():
        x = torch.ones(2)
    x.add_(1)
    with record():
        x.data.mul_(2)
    with pytest.raises(MaterializeError, match="changed in place outside"):
        materialize(register(x))


@pytest.mark.parametrize("kind", [lambda w: w.detach(), lambda w: w, lambda w: w.data])
def test_a_parameter_that_takes_anothers_place_outside_is_no_reason_to_refuse(kind):
    real, made, _, _ = build_twice(lambda: nn.Linear(2, 2))
    for module in (real, made):
        module.weight = nn.Parameter(kind(module.weight))
    materialize(made)
    assert_bit_equal(made, real)


def test_a_write_to_a_parameter_that_took_anothers_place_is_refused():
    with record():
        made = nn.Linear(2, 2)
    made.weight = nn.Parameter(made.weight.detach())
    with torch.no_grad():
        made.weight.add_(1)
    with pytest.raises(MaterializeError, match="'weight': it was changed in place"):
        materialize(made)


def test_a_write_inside_once_a_wrapper_was_called_that_is_gone_is_not_refused():
    def train():
        module = nn.Linear(2, 2)
        nn.Sequential(module)(torch.ones(2)).sum().backward()
        torch.optim.SGD(module.parameters(), lr=0.1).step()
        return module

    real, made, _, _ = build_twice(train)
    materialize(made)
    assert_bit_equal(made, real)


@pytest.mark.parametrize("call", [torch.sparse.mm, torch.vmap(torch.add)])
def test_tensors_without_a_storage_are_not_in_the_way_of_a_look_for_writes(call):
    with record():
        x, sparse = torch.ones(3, 3), torch.eye(3).to_sparse()
    torch._foreach_add_([x], 1)
    with record() as trace:
        call(sparse if call is torch.sparse.mm else x, x)
    assert [i.is_stale for i in trace.program.imports if i.version] == [True]


# Of tensors made in inference mode torch counts no writes: a note says so.


def test_that_nobody_counts_the_writes_of_an_inference_tensor_is_said():
    with record(), torch.inference_mode():
        x = torch.zeros(3)
    with record() as trace:
        y = x * 2
    assert [note.kind for note in trace.notes] == ["inference"]
    assert any("inference mode" in note for note in materialize(register(y)).notes)


# Tensors that left a storage for another, and count writes with those that stayed.


def test_a_write_of_what_a_tensor_was_moved_to_is_none_of_what_it_left():
    def build():
        module = nn.Linear(2, 2)
        kept.append(module.weight.detach())
        module.double()
        with torch.no_grad():
            module.weight.add_(1)
        return module

    kept = []
    build_twice(build)
    real, made = map(register, kept)
    materialize(made)
    assert_bit_equal(made, real)


def keep_before_a_cast(block, n_cells, between):
    """Return a weight that is kept while its module is cast, and trained in cells."""
    torch.manual_seed(5)
    with block():
        module = nn.Linear(3, 2)
        kept, part = module.weight.detach(), module.weight.detach()[0]
        module.double()
    written = between(part)
    for _ in range(n_cells):
        with block():
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            module(torch.ones(2, 3, dtype=torch.float64)).sum().backward()
            optimizer.step()
    return module, kept, written


@pytest.mark.parametrize("n_cells", [1, 2])
def test_a_weight_that_is_kept_before_a_cast_does_not_follow_the_training(n_cells):
    _, wanted, _ = keep_before_a_cast(nullcontext, n_cells, id)
    module, kept, _ = keep_before_a_cast(record, n_cells, id)
    materialize(kept)
    assert torch.equal(kept, wanted)
    assert module.weight.is_meta


@pytest.mark.parametrize("n_cells", [0, 1, 2])
@pytest.mark.parametrize("alias", [torch.Tensor.detach, lambda part: part.data])
def test_a_write_outside_of_a_weight_that_is_kept_before_a_cast_is_noticed(
    n_cells, alias
):
    module, kept, written = keep_before_a_cast(
        record, n_cells, lambda part: alias(part).add_(1).mul_(2).neg_()
    )
    with pytest.raises(MaterializeError, match="changed in place outside"):
        materialize(kept)
    assert module.weight.is_meta
    assert written.is_meta
