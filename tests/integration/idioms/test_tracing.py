"""Models on meta that are traced: ``torch.fx``, ``torch.export``, ``torch.jit``.

docs.pytorch.org/docs/stable/fx.html, export.html and jit.html
"""

import io

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.shape_prop import ShapeProp

from meta_magic import MetaMagicError, MissingValueError, materialize, record
from tests.integration.idioms.side_by_side import run, run_both

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning"
)
X = 3, 4


class Counting(nn.Module):
    """Makes as many zeros as its input says, on no named device."""

    def forward(self, x):
        n = x.max().item()
        torch._check(n >= 0)
        return torch.zeros(n) + 1


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def make_encoder():
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(16, 2, batch_first=True).eval()


def targets(graph):
    return [str(node.target) for node in graph.nodes]


def test_fx_traces_a_model_on_meta_and_the_shapes_pass_through_its_graph():
    def program():
        graph = torch.fx.symbolic_trace(make_model().to("meta"))
        ShapeProp(graph).propagate(torch.ones(X, device="meta"))
        return [tuple(n.meta["tensor_meta"].shape) for n in graph.graph.nodes]

    plain, recorded, trace = run_both(program)
    shapes = [(3, 4), (3, 8), (3, 8), (3, 2), (3, 2)]
    assert plain.returned == recorded.returned == shapes
    assert [call.op for call in trace.ops].count("aten.addmm.default") == 2


def test_fx_refuses_a_branch_on_values_as_ever():
    class Branching(nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x

    plain, recorded, _ = run_both(lambda: torch.fx.symbolic_trace(Branching()))
    assert plain.refusal == recorded.refusal


def test_make_fx_of_symbolic_sizes_is_the_same_graph():
    def program():
        traced = make_fx(lambda x: x.view(-1) + x.shape[0], tracing_mode="symbolic")
        return traced(torch.ones(X)).code

    plain, recorded, _ = run_both(program)
    assert plain.returned == recorded.returned


DYNAMIC = ({0: torch.export.Dim.DYNAMIC},)


@pytest.mark.parametrize("dynamic_shapes", [None, DYNAMIC])
@pytest.mark.parametrize(
    ("make", "shape"), [(make_model, X), (make_encoder, (3, 4, 16))]
)
def test_a_model_is_exported_and_its_program_is_recorded(make, shape, dynamic_shapes):
    def program():
        exported = torch.export.export(
            make(), (torch.ones(shape),), dynamic_shapes=dynamic_shapes
        )
        y = exported.module()(torch.ones(shape))
        return targets(exported.graph), y.tolist()

    plain, recorded, _ = run_both(program)
    assert plain.returned[0] == recorded.returned[0]
    assert torch.allclose(*map(torch.tensor, (plain.returned[1], recorded.returned[1])))


def test_a_model_of_sizes_that_depend_on_data_is_exported():
    def program():
        exported = torch.export.export(Counting(), (torch.tensor([3, 4]),))
        devices = {
            n.kwargs["device"] for n in exported.graph.nodes if "device" in n.kwargs
        }
        return targets(exported.graph), devices

    plain, recorded, _ = run_both(program)
    assert plain.returned == recorded.returned


def test_a_materialized_model_is_exported_with_its_values():
    with record():
        model = make_model()
    materialize(model)
    exported = torch.export.export(model, (torch.ones(X),))
    state = exported.state_dict
    assert torch.equal(state["0.weight"], make_model()[0].weight)


def test_an_export_by_dynamo_is_refused_in_a_recording_with_the_way_out():
    with record():
        outcome = run(
            lambda: torch.export.export(make_model(), (torch.ones(X),), strict=True)
        )
    assert isinstance(outcome.error, MetaMagicError)
    assert "leave strict out, or export after the cell" in str(outcome.error)


@pytest.mark.parametrize(
    ("make", "shape"), [(make_model, X), (make_encoder, (3, 4, 16))]
)
def test_a_traced_model_has_the_values_of_the_cpu(make, shape):
    def program():
        traced = torch.jit.trace(make(), torch.ones(shape), check_trace=False)
        other = (2, 5, *shape[2:]) if len(shape) > 2 else (5, 4)
        return traced(torch.ones(other)).tolist()

    plain, recorded, _ = run_both(program)
    assert torch.allclose(*map(torch.tensor, (plain.returned, recorded.returned)))


def test_nothing_that_the_recording_asks_of_sizes_is_traced():
    def program():
        model = make_encoder().train()  # by the same code on both
        return torch.jit.trace(model, torch.ones(3, 4, 16), check_trace=False)

    plain, recorded, _ = run_both(program)

    def count(traced):
        kinds = [node.kind() for node in traced.inlined_graph.nodes()]
        return {kind: kinds.count(kind) for kind in kinds}

    assert count(plain.returned) == count(recorded.returned)


def test_a_scripted_model_runs_on_meta_and_recorded():
    def program():
        return torch.jit.script(make_model().to("meta"))(torch.ones(X, device="meta"))

    plain, recorded, _ = run_both(program)
    assert plain.returned.shape == recorded.returned.shape == (3, 2)


def test_a_scripted_model_is_saved_with_its_values():
    def program():
        file = io.BytesIO()
        torch.jit.save(torch.jit.script(make_model()), file)
        file.seek(0)
        return file

    with record() as trace:
        file = program()
    assert "torch.jit.save wrote 4 tensors" in trace.notes[-1].text
    x = torch.randn(X)
    assert torch.equal(torch.jit.load(file)(x), make_model()(x))


def test_a_materialized_model_is_scripted_and_traced_for_real():
    with record():
        model = make_model()
    materialize(model)
    x = torch.randn(X)
    for compiled in (torch.jit.script(model), torch.jit.trace(model, x)):
        assert torch.equal(compiled(x), make_model()(x))


def test_what_was_frozen_on_meta_cannot_be_saved_and_the_error_says_what_to_do():
    with record():
        frozen = torch.jit.freeze(torch.jit.script(make_model().eval()))
        outcome = run(lambda: torch.jit.save(frozen, io.BytesIO()))
    assert isinstance(outcome.error, MissingValueError)
    assert "save before it is frozen" in str(outcome.error)
