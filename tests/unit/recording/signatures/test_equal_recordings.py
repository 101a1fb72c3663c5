"""The same program gives the same record, whatever was recorded before."""

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional

from meta_magic.session.record import record
from meta_magic.session.recording import shared_cache_by_device
from tests.unit.recording.signatures.equal_programs import PROGRAMS, negate_lazily


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
