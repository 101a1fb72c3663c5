"""The same program gives the same record, whatever was recorded before."""

import contextlib
import gc
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional, init

from meta_magic.session.record import record
from meta_magic.session.recording import shared_cache_by_device


def negate_lazily():
    x, z = torch.ones(3, 4), torch.ones(2, dtype=torch.complex64)
    for _ in range(2):
        negated = z.conj().imag
        functional.relu(torch.tanh(x) + x)
        functional.relu(negated + 1)


def read_values():
    for value in (1.5, 2.5):
        torch.full((2,), (torch.tensor(value) * 2).item())


def call_functions():
    x = torch.ones(3, 4)
    functional.relu(torch.tanh(x) + x)


def take_parts():
    x, at = torch.ones(6, 4), torch.tensor([0, 3])
    for _ in range(2):
        a, b = x[at].split(1)
        c, d = (a + b).unbind(0)[0].chunk(2)
        x[:, at][1] + c[0] + d[-1]


def count_real_steps():
    with torch.device("cpu"):
        real = torch.ones(())
    for step in range(3):
        real += 1
        assert real.item() == 2 + step
    real.numpy()[()] = 7
    real += 1
    assert real.item() == 8
    with torch.device("cpu"):
        other = torch.ones(1)
    for size in (2, 2, 3):
        other.resize_(size)


def meet_others_at_addresses():
    layer, x = nn.Linear(4, 4), torch.ones(3, 4)
    with torch.no_grad():
        for size in (3, 4, 3, 4):
            cached = torch.tensor([])
            x = torch.cat([cached, layer(torch.ones(size, 4)[:3])])
            functional.linear(x * x, torch.ones(4, 4), layer.bias)
            x.data = x[1:] + x[:1]
            del cached


def add_sparse_tensors():
    at = torch.tensor([[0, 1], [0, 1]])
    made = torch.sparse_coo_tensor(at, torch.ones(2), (2, 2), check_invariants=False)
    for _ in range(2):
        (torch.ones(2, 2) + made) * made.to_dense()


def draw_on_meta_by_name():
    for device in ("meta", None):
        x = torch.ones(3, 4, device=device)
        for _ in range(3):
            functional.dropout(torch.bernoulli(x))


def refuse_a_position():
    table, ones = torch.ones(4, 3), torch.ones(2)
    functional.embedding(torch.tensor([1, 2]), table)
    with pytest.raises(IndexError):
        functional.embedding(torch.tensor([1, 7]), table)
    ones + 1


def call_traced_module():
    layer, x = nn.Linear(3, 4), torch.ones(2, 3)
    with torch.no_grad():
        layer(x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            traced = torch.jit.trace(layer, x)
        traced(x)


def write_arrays_between_calls():
    first, second = np.zeros(3, "f4"), np.ones(3, "f4")
    scale, x = torch.from_numpy(first), torch.from_numpy(second)
    for _ in range(2):
        for call in (
            lambda: torch.cosine_similarity(scale, x, 0),
            lambda: functional.rms_norm(scale, (3,), x),
            lambda: torch.outer(scale, x),
        ):
            first += 1
            second += 1
            call()


def cast():
    x = torch.ones(3, 4)
    for _ in range(2):
        whole = x.to(torch.int64).float() + x.to(torch.float32).half()
        whole.bool().long().int().double().bfloat16().to(x)
    return whole


def lay_out():
    x = torch.ones(3, 4)
    for _ in range(2):
        x = (x.contiguous() + x.t().contiguous().t()).contiguous()
        x.expand(2, 3, 4).contiguous().reshape(6, 4)
    return x


def write_what_was_returned_as_it_is():
    x = torch.ones(3, 4)
    for _ in range(2):
        x.float().add_(1)
        x.contiguous()[0] = 2
        x.to(torch.float32).t_()
    return x


def with_gradients():
    x = torch.ones(3, 4, requires_grad=True)
    for _ in range(2):
        with torch.no_grad():
            shift = x.float().to(torch.float64) + x.detach().contiguous()
        y = x.to(torch.float16).float().contiguous() + shift
        y.sort()[0].sum().backward()
    return x


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


PROGRAMS = (
    refuse_a_position,
    call_traced_module,
    write_arrays_between_calls,
    draw_on_meta_by_name,
    count_real_steps,
    add_sparse_tensors,
    meet_others_at_addresses,
    call_functions,
    take_parts,
    negate_lazily,
    read_values,
    cast,
    lay_out,
    write_what_was_returned_as_it_is,
    with_gradients,
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
    write_numbers_alike,
)


def run(program, **options):
    """Return the trace of a program."""
    torch.manual_seed(0)
    with record(**options) as trace:
        kept = program()
    del kept  # which lived to the end of the recording
    return trace


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_has_one_record_whether_its_calls_are_known_or_not(program):
    shared_cache_by_device.clear()
    traces = [run(program, cache=cache) for cache in (False, True, True)]
    run(negate_lazily)
    traces.append(run(program))
    assert [trace == traces[0] for trace in traces] == [True] * 4


@pytest.mark.filterwarnings("ignore:Warning only once")
@pytest.mark.parametrize("is_put_in", [True, False])
def test_a_kernel_that_a_library_puts_in_is_run(is_put_in):
    def apply():
        return run(lambda: functional.linear(torch.ones(2, 2), torch.ones(2, 2)))

    def put_in(library):
        library.impl("linear", lambda x, *_: x.neg(), "CompositeImplicitAutograd")

    with torch.library._scoped_library("aten", "IMPL") as library:
        if not is_put_in:
            put_in(library)
        for _ in range(2):
            apply()
        if is_put_in:
            put_in(library)
            assert apply().ops[-1].op == "aten.neg.default"
    assert apply().ops[-1].op == "aten.mm.default"


def test_a_signature_says_of_a_value_that_was_read_what_it_is_alone():
    with record() as trace:
        torch.tensor(1.5).item()
    *_, signature = trace.program.signatures
    assert signature.returns.text == "a value of type float"


def test_a_parameter_is_not_mistaken_for_a_tensor_that_is_gone():
    with record() as trace:
        x = torch.ones(3)
        others = [x.detach() for _ in range(100)]
        for other in others:
            other.add(1)
        addresses = set(map(id, others))
        del others, other
        parameters = [nn.Parameter(x) for _ in range(100)]
        again = [p for p in parameters if id(p) in addresses]
        again[0].add(1)
    earlier = {t.tensor_id for call in trace.ops[:-1] for t in call.inputs}
    assert trace.ops[-1].inputs[0].tensor_id not in earlier


def test_garbage_that_happens_to_be_collected_early_is_recorded_as_all_garbage():
    thresholds = gc.get_threshold()
    try:
        traces = []
        for threshold in (1, 0):
            gc.set_threshold(threshold)
            traces.append(run(lambda: nn.LazyLinear(3)))
    finally:
        gc.set_threshold(*thresholds)
    assert traces[0] == traces[1]
