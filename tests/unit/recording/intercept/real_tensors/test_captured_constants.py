"""Real tensors that meet meta tensors are constants; values are those of a real run."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils import data

from meta_magic import MixedDeviceError, ReplayError, real, record, replay
from meta_magic.recording.intercept.real_tensors.capturable import find_on_meta, is_real
from tests.conformance.sparse_calls import edges, rows
from tests.unit.eager import assert_same

LIFTED = {
    "matmul": lambda x, made: x @ made(4, 2),
    "addmm": lambda x, made: torch.addmm(x[:, :2], x, made(4, 2)),
    "linear": lambda x, made: functional.linear(x, made(2, 4)),
    "embedding": lambda x, made: functional.embedding(made(1).long(), x),
    "index": lambda x, made: x[made(1).long()],
    "index by real": lambda x, made: made(3, 4)[x[0, :2].long()],
    "mask": lambda x, made: made(3, 4)[x > 0],
    "add": lambda x, made: x + made(4),
    "add_": lambda x, made: made(3, 4).add_(x),
    "cat": lambda x, made: torch.cat([x, made(1, 4)]),
    "stack of numbers": lambda x, made: torch.stack([x[0, 0], made(())]),
    "where": lambda x, made: torch.where(x > 0, x, made(4)),
    "conv2d": lambda x, made: functional.conv2d(
        x.view(1, 3, 2, 2), made(4, 3, 1, 1)
    ),
    "conjugated": lambda x, made: (x * 1j).conj() * made(4),
    "lstm": lambda x, made: torch.lstm(
        x[None],
        (made(1, 1, 2), made(1, 1, 2)),
        [made(8, 4), made(8, 2), made(8), made(8)],
        True, 1, 0.0, False, False, True,
    )[0],
}  # fmt: skip


def values():
    return torch.linspace(-1, 1, 12).view(3, 4)


def last_value(trace):
    (value,) = replay(trace, trace.ops[-1].outputs[:1])
    return value


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("name", LIFTED)
def test_what_is_made_with_a_real_tensor_has_its_values(name, cache):
    expected = LIFTED[name](values(), torch.ones)
    x = values()
    for _ in range(2):
        with record(cache=cache) as trace:
            made = LIFTED[name](x, torch.ones)
            assert made.is_meta
            made.clone()
        assert torch.equal(last_value(trace), expected)
    assert torch.equal(x, values())


def test_one_note_names_captured_tensors():
    x, y = torch.ones(3, 4), torch.ones(256)
    with record() as trace:
        torch.ones(3, 4) + x
        torch.ones(256) + y
        torch.ones(3, 4) * x
    (note,) = [note for note in trace.notes if note.kind == "real"]
    assert "2 real tensors of 1.0 KiB" in note.text
    assert "'x', 'y'" in note.text


def test_a_real_tensor_that_is_written_between_is_another_constant():
    x = torch.ones(3)
    with record() as trace:
        first = torch.ones(3) + x
        with real():
            x.add_(1)
        second = torch.ones(3) + x
        (first + second).clone()
    assert last_value(trace).tolist() == [5, 5, 5]


def test_a_large_real_tensor_is_not_copied_and_refused_by_name_once_changed():
    large = torch.ones(5 * 2**20)
    with record() as trace:
        (torch.ones(()) + large).sum()
    (constant,) = trace.program.constants
    assert constant.tensor.data_ptr() == large.data_ptr()
    assert last_value(trace) == 10 * 2**20
    large[3] = 7
    with pytest.raises(ReplayError, match="your real `large` that the cell read was"):
        last_value(trace)


WRITES = {
    "add_": lambda x: x.add_(torch.ones(4)),
    "a view": lambda x: x.view(-1)[:3].copy_(torch.ones(3)),
    "an item": lambda x: x.__setitem__(0, torch.ones(4)),
    "out=": lambda x: torch.add(torch.ones(3, 4), 1, out=x),
    "data": lambda x: x.data.mul_(torch.ones(4)),
    "once captured": lambda x: (x + torch.ones(4), x.add_(1)),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_into_a_real_tensor_is_refused_by_its_name(name):
    x = values()
    text = "would change your real `x`; build it"
    with pytest.raises(MixedDeviceError, match=text), record():
        WRITES[name](x)
    assert torch.equal(x, values())


def test_what_the_cell_itself_made_for_real_may_be_written():
    with record() as trace:
        with real():
            x = torch.ones(3)
        torch.ones(3) + x
        x.add_(1)
        (torch.ones(3) + x).clone()
    assert last_value(trace).tolist() == [3, 3, 3]


def test_a_real_loader_feeds_a_model_of_the_cell():
    def train(loader, n_in):
        losses = []
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(n_in, 5), nn.Dropout(0.2), nn.Linear(5, 2))
        optimizer = torch.optim.Adam(model.parameters())
        for x, y in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(20, 3, generator=generator)
    loader = data.DataLoader(data.TensorDataset(x, (x.sum(1) > 0).long()), 8, True)
    assert_same(lambda: train(loader, 3))


LIKE = {
    "zeros_like": torch.zeros_like,
    "rand_like": torch.rand_like,
    "randint_like": lambda x: torch.randint_like(x, 9),
    "empty_like": lambda x: torch.empty_like(x).normal_(),
    "new_zeros": lambda x: x.new_zeros(2, 3),
    "new_tensor": lambda x: x.new_tensor([1, 2.5]),
    "new_tensor of numbers that are tensors": lambda x: x.new_tensor(
        [torch.ones(()), 2]
    ),
    "new_tensor of a real tensor": lambda x: x.new_tensor(x.detach()[0]),
    "new_empty_strided": lambda x: x.new_empty_strided((2,), (2,)).fill_(1),
    "new of sizes": lambda x: x.new(2, 3).fill_(1),
    "new of a size": lambda x: x.new(x.size()).fill_(1),
    "new of nothing": lambda x: x.new(),
    "new of a list": lambda x: x.new([1, 2.5]),
    "a write into it": lambda x: torch.zeros_like(x).index_fill_(0, x[0].long(), 1),
}


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("name", LIKE)
def test_what_is_made_like_a_real_tensor_is_planned(name):
    x = values().T

    def draw():
        torch.manual_seed(0)
        return torch.randn(2), LIKE[name](x), torch.randn(2)

    wanted = draw()
    with record():
        made = draw()
        assert (made[1].is_meta, str(made[1].device)) == (True, "cpu")
        assert made[1].stride() == wanted[1].stride()
        assert [tensor.tolist() for tensor in made] == [t.tolist() for t in wanted]


def test_a_real_tensor_that_an_operator_made_counts_once():
    data = torch.ones(1000, 10)
    with record() as trace:
        model = nn.Linear(10, 10)
        batch = torch.stack([*data[:500]])
        model(batch).sum().backward()
    made = data.nbytes + 500 * 10 * 4 + 110 * 4
    assert trace.memory.peak_nbytes == made + 500 * 10 * 4 + 4  # output and loss


def test_a_parameter_that_was_read_before_its_module_runs_counts_once():
    model = nn.Linear(100, 100, bias=False)
    with record() as trace:
        norm = model.weight.norm()
        y = model(torch.ones(2, 100))
    assert trace.memory.live_nbytes[-1] == 100 * 100 * 4 + norm.nbytes + 2 * y.nbytes


# Whether modules hold real tensors, also where they hold each other


def circle_around(*modules):
    root, child = nn.Sequential(*modules), nn.Sequential()
    root.add_module("child", child)
    child.add_module("root", root)
    return root


def test_each_module_on_meta_is_found():
    layer = nn.Linear(2, 3, device="meta")
    root = circle_around(layer)
    assert {*find_on_meta(root)} == {root, layer, root.child}


def test_a_real_tensor_below_is_found():
    assert find_on_meta(circle_around(nn.Linear(2, 3))) is None


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        ([], None),
        ([nn.Linear(2, 3)], True),
        ([nn.ReLU(), nn.Linear(2, 3, device="meta"), nn.Linear(2, 3)], False),
    ],
)
def test_the_first_module_that_holds_tensors_decides(modules, expected):
    assert is_real(circle_around(*modules)) is expected


def test_modules_without_tensors_may_be_of_any_depth():
    root = module = nn.Module()
    for _ in range(3000):
        module.add_module("below", nn.Module())
        module = module.below
    module.weight = nn.Parameter(torch.ones(1))
    assert is_real(root) is True


# Real sparse tensors, from before a cell, that meet meta tensors in it


pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning")

MADE = {
    "coordinates": lambda: edges((5, 5)),
    "coalesced": lambda: edges((5, 5)).coalesce(),
    "rows": lambda: edges((5, 5)).coalesce().to_sparse_csr(),
}


def multiply(graph):
    return (graph @ torch.randn(5, 3)).tolist()


def multiply_where_the_cpu_is_named(graph):
    x = torch.randn(5, 3)
    with torch.device("cpu"):
        return torch.sparse.mm(graph, x).tolist()


def add(graph):
    if graph.layout is not torch.sparse_coo:
        return []
    return (torch.randn(5, 5) + graph).tolist()


def train(graph):
    first, second = nn.Linear(4, 6), nn.Linear(6, 2)
    weights = [*first.parameters(), *second.parameters()]
    optimizer = torch.optim.Adam(weights, lr=0.1)
    x, losses = torch.randn(5, 4), []
    for _ in range(3):
        hidden = torch.sparse.mm(graph, first(x)).relu()
        loss = torch.sparse.mm(graph, second(hidden)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [weight.tolist() for weight in weights]


def train_with_a_buffer(graph):
    model = nn.Linear(4, 6)
    model.register_buffer("graph", graph)
    loss = (model.graph @ model(torch.randn(5, 4))).pow(2).sum()
    loss.backward()
    return model.weight.grad.tolist()


def change(graph):
    before = (graph @ torch.ones(5, 2)).tolist()
    graph.mul_(2)
    after = (graph @ torch.ones(5, 2)).tolist()
    graph.mul_(0.5)
    return before, after


def look(graph):
    return graph._nnz(), graph.to_dense().tolist(), str(graph)


BLOCKS = [multiply, multiply_where_the_cpu_is_named, add, train, train_with_a_buffer]


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("block", [*BLOCKS, change, look])
def test_a_real_sparse_tensor_is_a_constant_of_the_cell(block, made):
    torch.manual_seed(7)
    graph = MADE[made]()
    before = str(graph)
    torch.manual_seed(0)
    wanted = block(graph)
    torch.manual_seed(0)
    with record():
        met = block(graph)
    assert met == wanted
    assert str(graph) == before


def test_a_real_sparse_tensor_keeps_its_values_on_the_way_to_meta():
    graph = edges().coalesce()
    with record():
        moved = graph.to("meta")
        assert moved.is_meta
        assert moved._nnz() == graph._nnz()
        assert moved.to_dense().tolist() == graph.to_dense().tolist()


def test_a_real_sparse_leaf_that_wants_a_gradient_is_refused():
    graph = rows().requires_grad_()
    with record(), pytest.raises(RuntimeError):
        graph @ torch.randn(5, 3)
