"""Factories and initializers that are served: recorded as if they ran."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import init

from meta_magic import record
from meta_magic.recording.intercept import served_makers
from meta_magic.trace.program import Program


def build_layers() -> object:
    return [nn.Linear(4, 3) for _ in range(3)], nn.LayerNorm(4), nn.Embedding(5, 4)


def draw_for_real() -> object:
    made = torch.rand(3), torch.randn(2, 3)
    return made, torch.rand(2, device="cpu"), torch.rand(3)


def make_of_dtypes() -> object:
    torch.set_default_dtype(torch.float64)
    made = torch.empty(3), torch.zeros(2, dtype=torch.int32)
    torch.set_default_dtype(torch.float32)
    return made, torch.empty(3), torch.empty([3]), torch.ones(torch.Size([3]))


def make_with_gradient() -> object:
    return torch.zeros(3, requires_grad=True), torch.zeros(3)


def make_on_a_plan() -> object:
    with torch.device("cuda"):
        planned = nn.Linear(3, 2)
    return planned, nn.Linear(3, 2), torch.empty(2)


def initialize_in_vain() -> object:
    bias = torch.empty(3)
    with contextlib.suppress(ValueError):
        init.kaiming_uniform_(bias)
    return init.uniform_(torch.empty(2)), init.normal_(bias)


def initialize_parts() -> object:
    weight = nn.Parameter(torch.empty(4, 3))
    init.normal_(weight[1:], 0.0, 0.02)
    init.normal_(weight[1:], -0.0, 0.02)
    init.constant_(weight, 3)
    init.constant_(weight, 3.0)
    with torch.no_grad():
        weight[0].zero_().fill_(2)
    return weight


def draw_from_a_generator() -> object:
    generator = torch.Generator()
    made = init.normal_(torch.empty(3), generator=generator)
    return made, init.normal_(torch.empty(3)), made.uniform_(generator=generator)


def draw_where_states_are_put_back() -> object:
    weight, generator = torch.empty(3), torch.Generator()
    init.normal_(weight)
    state = torch.get_rng_state()
    init.normal_(weight)
    drawn = torch.rand(2, generator=generator)
    init.uniform_(weight)
    torch.set_rng_state(state)
    init.normal_(weight)
    init.normal_(weight)
    torch.manual_seed(3)
    return init.normal_(weight), drawn, torch.randn(2)


class Growing(nn.Module):
    """Makes and initializes a parameter in each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(3, 2)])
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init.normal_(self.parts[0].weight)

    def forward(self) -> torch.Tensor:
        self.parts.append(nn.Linear(3, 2))
        return torch.zeros(3) + init.normal_(torch.empty(3))


def make_in_forward() -> object:
    module = Growing()
    return module, [module() for _ in range(2)], module()


def initialize_again() -> object:
    module, other = Growing(), Growing()

    def reset() -> None:
        module.reset_parameters()

    reset()
    reset()
    other.reset_parameters()
    module.reset_parameters()
    return module, other


def write_numbers_alike() -> object:
    with torch.no_grad():
        written = torch.empty(3, dtype=torch.complex64)
        for value in (0j, complex(0.0, -0.0), 1, 1.0, True, complex(1), float("nan")):
            written.fill_(value)
    return written


def write_where_arrays_look_on() -> object:
    shared = torch.zeros(3)
    array = shared.numpy()
    shared.fill_(2)
    array[0] = 1
    return shared.fill_(4), array, torch.zeros(3).zero_()


def write_for_inference() -> object:
    with torch.inference_mode():
        made = torch.empty(3).fill_(1)
        return made.zero_(), init.normal_(made)


def record_program(cell: Callable[[], object], *, cache: bool) -> Program:
    """Record a cell after a seed; what it makes lives on to the end."""
    torch.manual_seed(0)
    with record(cache=cache) as trace:
        made = cell()
    del made
    program: Program = trace.program
    return program


@pytest.mark.parametrize(
    "cell",
    [
        build_layers,
        draw_for_real,
        make_of_dtypes,
        make_with_gradient,
        make_on_a_plan,
        initialize_in_vain,
        initialize_parts,
        draw_from_a_generator,
        write_where_arrays_look_on,
        write_for_inference,
        draw_where_states_are_put_back,
        make_in_forward,
        initialize_again,
        write_numbers_alike,
    ],
)
def test_what_is_served_is_recorded_as_what_ran(cell: Callable[[], object]) -> None:
    ran = record_program(cell, cache=False)
    served = [record_program(cell, cache=True) for _ in range(3)]

    assert all(program == ran for program in served)


def test_a_served_factory_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    learnt: list[object] = []
    learn = served_makers.ServedMakers._learn

    def note(self: Any, key: Any, *rest: Any) -> Any:
        learnt.append(key[0])
        return learn(self, key, *rest)

    monkeypatch.setattr(served_makers.ServedMakers, "_learn", note)
    with record():
        nn.Linear(71, 73)
    n_cold = len(learnt)
    with record():
        nn.Linear(71, 73)

    assert n_cold == 4
    assert len(learnt) == n_cold


def test_a_served_initializer_counts_its_write() -> None:
    versions = []
    for _ in range(2):
        with record():
            weight = nn.Parameter(torch.empty(3, 2))
            init.kaiming_uniform_(weight)
            init.normal_(weight)
        versions.append(weight._version)

    assert versions == [2, 2]


def test_a_leaf_is_still_refused_where_gradients_are_on() -> None:
    for _ in range(2):
        with record(), torch.no_grad():
            nn.Parameter(torch.empty(3)).fill_(1)
        with record(), pytest.raises(RuntimeError, match="leaf Variable"):
            nn.Parameter(torch.empty(3)).fill_(1)


def test_transformers_leaves_what_is_initialized() -> None:
    initialization = pytest.importorskip("transformers.initialization")

    def count(*, is_initialized: bool) -> int:
        with record() as trace:
            weight = torch.empty(3)
            weight._is_hf_initialized = is_initialized
            with initialization.guard_torch_init_functions():
                init.normal_(weight)
        return len(trace.ops)

    assert [count(is_initialized=False) for _ in range(2)] == [2, 2]
    assert [count(is_initialized=True) for _ in range(2)] == [1, 1]
