"""Real modules in a cell: recorded like any other, and afterwards as they were."""

import contextlib
import copy
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

from meta_magic import ReplayError, materialize, record, replay

X = torch.linspace(-1, 1, 24).view(6, 4)
Y = torch.tensor([0, 1, 2, 0, 1, 2])


def build():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3)
    )


def train(model, optimizer, n=3):
    losses = []
    torch.manual_seed(1)
    for _ in range(n):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(X), Y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Snapshot:
    """Return the state of a model and its optimizer, and their objects."""

    def __init__(self, model, optimizer=None):
        self.parts = [model.state_dict(), {} if optimizer is None else vars(optimizer)]
        self.parts = copy.deepcopy([*self.parts, [p.grad for p in model.parameters()]])
        held = [*model.parameters(), *model.buffers()]
        self.objects = [(id(t), id(t.grad), t._version, t.data_ptr()) for t in held]
        self.names = [
            name for name, _ in (*model.named_parameters(), *model.named_buffers())
        ]

    __hash__ = None

    def __eq__(self, other):
        is_same = self.objects == other.objects and self.names == other.names
        return (
            is_same
            and are_equal(self.parts[0::2], other.parts[0::2])
            and are_equal(self.parts[1].get("state"), other.parts[1].get("state"))
        )


def are_equal(a, b):
    if isinstance(a, torch.Tensor):
        return a.device == b.device and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):  # the keys of an optimizer's state are copies
        return len(a) == len(b) and all(map(are_equal, a.values(), b.values()))
    if isinstance(a, list):
        return len(a) == len(b) and all(map(are_equal, a, b))
    return a == b


KINDS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 0.1),
    "adamw": lambda p: torch.optim.AdamW(p, 0.1, amsgrad=True),
    "foreach": lambda p: torch.optim.Adam(p, 0.1, foreach=True),
}


@pytest.mark.parametrize("n_before", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_real_model_is_trained_as_for_real_and_is_then_as_it_was(kind, n_before):
    model = build()
    optimizer = KINDS[kind](model.parameters())
    train(model, optimizer, n_before)
    before = Snapshot(model, optimizer)
    with record() as trace:
        losses = train(model, optimizer)
        assert model[0].weight.is_meta
        assert model[1].num_batches_tracked.is_meta
    assert Snapshot(model, optimizer) == before
    assert losses == train(model, optimizer)
    assert trace.nbytes_real == 0


def test_an_optimizer_that_the_cell_makes_trains_a_real_model():
    model, other = build(), build()
    with record():
        losses = train(model, torch.optim.Adam(model.parameters()))
    assert losses == train(other, torch.optim.Adam(other.parameters()))
    assert are_equal(model.state_dict(), build().state_dict())
    assert model[0].weight.grad is None


@pytest.mark.parametrize("ends", [RuntimeError, KeyboardInterrupt])
def test_a_loan_returns_after_an_error(ends):
    model = build()
    before = Snapshot(model)
    with pytest.raises(ends), record():
        model(torch.ones(2, 4)).sum().backward()
        assert model[0].weight.grad.is_meta
        raise ends
    assert Snapshot(model) == before


def test_a_real_graph_that_was_pending_survives():
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    other = copy.deepcopy(model)
    pending, again = model(X).sum(), other(X).sum()
    with record():
        train(model, torch.optim.SGD(model.parameters(), 0.1))
    pending.backward()
    again.backward()
    assert torch.equal(model[0].weight.grad, other[0].weight.grad)


def test_the_note_names_the_model():
    model = build()
    with record() as trace:
        model(torch.ones(2, 4))
    (note,) = [note for note in trace.notes if note.kind == "real"]
    assert "'model'" in note.text


def test_a_large_parameter_is_not_copied_and_refused_by_name_once_changed():
    model = nn.Sequential(nn.Linear(512, 512))
    with record() as trace:
        model(torch.ones(1, 512)).clone()
    weight = model[0].weight
    kept = [c.tensor.data_ptr() for c in trace.program.constants if c.data is None]
    assert kept == [weight.data_ptr()]
    replay(trace, trace.ops[-1].outputs)
    with torch.no_grad():
        weight[0, 0] = 7
    with pytest.raises(ReplayError, match=r"your real `model\.0\.weight` that"):
        replay(trace, trace.ops[-1].outputs)


def test_a_bare_leaf_gets_its_gradient_on_meta():
    w = torch.ones(4, 3, requires_grad=True)
    with record():
        (torch.ones(2, 4) @ w).sum().backward()
        assert w.grad.tolist() == torch.full((4, 3), 2.0).tolist()
    assert w.grad is None
    assert w.tolist() == torch.ones(4, 3).tolist()


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_an_optimizer_with_a_closure_trains_a_real_model_as_for_real(search):
    model, data = nn.Linear(3, 1), torch.randn(8, 4)
    optimizer = torch.optim.LBFGS(
        model.parameters(), 0.5, max_iter=4, line_search_fn=search
    )

    def step():
        def closure():
            optimizer.zero_grad()
            loss = (model(data[:, :3]) - data[:, 3:]).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure).item()

    for _ in range(2):  # the second time with what the optimizer keeps
        weight = model.weight.tolist()
        with record():
            losses = [step(), step()]
        assert model.weight.tolist() == weight
        assert losses == [step(), step()]


def test_a_module_that_a_cell_moves_or_casts_is_as_it_was():
    model = build()
    before = Snapshot(model)
    with record():
        model.to("cuda")
        assert model[1].running_mean.device == torch.device("cuda:0")
        assert model(torch.ones(2, 4, device="cuda")).device == torch.device("cuda:0")
        model.half()
        assert model[0].weight.dtype == torch.float16
    assert Snapshot(model) == before


def test_nothing_of_a_borrowed_module_is_held_afterwards():
    model = build()
    with record() as trace:
        model(torch.ones(2, 4))
    gone = weakref.ref(model)
    del model
    assert gone() is None
    assert trace.error is None


# Modules whose first call decides sizes, made before the cell that calls them


X_OF_LAZY = torch.linspace(-1, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8)


def build_lazy():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten()),
        *(nn.LazyLinear(5), nn.BatchNorm1d(5), nn.Linear(5, 2)),
    )


def call(model):
    return model(torch.ones(2, 3, 8, 8)).sum()


def call_without_gradients(model):
    with torch.no_grad():
        return model(X_OF_LAZY).sum()


def train_lazy(model):
    model(X_OF_LAZY)
    model.apply(draw_weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(X_OF_LAZY).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss


def draw_weights(module):
    if type(module) is nn.Linear:
        nn.init.normal_(module.weight)


def call_parts_before(model):
    model[5](torch.ones(2, 5))
    model[6](torch.ones(2, 5))
    return model(X_OF_LAZY).sum()


def initialize(model):
    model[0].initialize_parameters(X_OF_LAZY)
    return model(X_OF_LAZY).sum()


def move(model):
    return model.to("cpu")(X_OF_LAZY).sum()


PROGRAMS = [
    call,
    call_without_gradients,
    train_lazy,
    call_parts_before,
    initialize,
    move,
]


def run(program, model):
    torch.manual_seed(1)
    return program(model).item()


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_has_the_values_of_the_cpu_in_the_cell_and_when_it_is_made_real(program):
    model, wanted = build_lazy(), build_lazy()
    with record():
        value = run(program, model)
    assert value == run(program, wanted)
    materialize(model)
    assert str(model) == str(wanted)
    states = model.state_dict(), wanted.state_dict()
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name


def test_the_next_cell_calls_it_again():
    model, wanted = build_lazy(), build_lazy()
    with record():
        first = run(call, model)
    with record():
        second = run(call, model)
    assert (first, second) == (run(call, wanted), run(call, wanted))


def test_a_note_says_that_it_stays_on_meta():
    net = build_lazy()
    with record() as trace:
        net(X_OF_LAZY)
    (text,) = [note.text for note in trace.notes if note.kind == "state"]
    assert "lazy parameters of 'net'" in text
    assert "mm.materialize" in text
    assert all(tensor.is_meta for tensor in net.state_dict().values())


CONVERSIONS = {
    "double": nn.Module.double,
    "there and back": lambda layer: layer.half().double(),
    "device and dtype": lambda layer: layer.to("cpu", torch.float64),
}


@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
def test_a_dtype_is_given_before_a_lazy_module_knows_its_shapes(convert):
    given = torch.ones(2, 5, dtype=torch.float64)
    called = []
    for block in (contextlib.nullcontext(), record()):
        torch.manual_seed(0)
        with block:
            model = convert(nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d()))
            called.append(model(given).tolist())
    assert called[0] == called[1]
