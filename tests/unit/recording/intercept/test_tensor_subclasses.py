"""Tensors that are not plain: recorded, or said by name that they are not."""

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.masked import masked_tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from meta_magic import MetaMagicError, record

aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of", "ignore:Sparse invariant checks", "ignore::UserWarning"
)


class Quantized(torch.Tensor):
    """A weight in eight bits, with a scale for each row; as torchao builds them."""

    @staticmethod
    def __new__(cls, data, scale):
        return torch.Tensor._make_wrapper_subclass(
            cls, data.shape, dtype=scale.dtype, device=data.device
        )

    def __init__(self, data, scale):
        self.values_, self.scale = data, scale

    @classmethod
    def of(cls, weight):
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        if func is aten.detach.default:
            return cls(args[0].values_, args[0].scale)
        real = [a.values_ * a.scale if isinstance(a, cls) else a for a in args]
        return func(*real, **(kwargs or {}))


class Names(TorchDispatchMode):
    """Torch's own view of the operators that a program runs for real."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if Quantized in types:
            return NotImplemented
        returned = func(*args, **(kwargs or {}))
        if isinstance(returned, torch.Tensor):
            self.calls.append((str(func), tuple(returned.shape), returned.dtype))
        return returned


def calls_of(trace):
    return [
        (call.op, call.outputs[0].shape, call.outputs[0].dtype)
        for call in trace.ops
        if len(call.outputs) == 1
    ]


def infer():
    model = nn.Linear(4, 3)
    model.weight = nn.Parameter(Quantized.of(model.weight.detach()), False)
    return model(torch.ones(2, 4))


def train():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model[1].weight = nn.Parameter(Quantized.of(model[1].weight.detach()), False)
    model(torch.ones(2, 4)).sum().backward()
    return model[0].weight.grad


@pytest.mark.parametrize("program", [infer, train])
def test_a_wrapper_subclass_is_recorded_as_what_it_runs(program):
    with Names() as names:
        real = program()
    for _ in range(2):
        with record() as trace:
            made = program()
        assert calls_of(trace) == names.calls
        assert (made.shape, made.dtype) == (real.shape, real.dtype)
        assert trace.notes == ()


PLAIN = {
    "complex": lambda: torch.ones(3, dtype=torch.complex64).conj() * 2j,
    "real part": lambda: torch.fft.fft(torch.ones(4)).real,
    "masked": lambda: masked_tensor(torch.ones(3), torch.tensor([True, False, True])),
    "jagged": lambda: nested(torch.ones(5, 4)).values(),
    "jagged linear": lambda: nn.Linear(4, 3)(nested(torch.ones(5, 4))).values(),
    "jagged padded": lambda: nested(torch.ones(5, 4)).to_padded_tensor(0.0, (2, 3, 4)),
    "int8 product": lambda: torch._int_mm(
        *[torch.ones(32, 32, dtype=torch.int8).t()] * 2
    ),
    "compressed": lambda: compressed().to_dense(),
    "custom": lambda: torch.ops.mm_test.known(torch.ones(3)),
}


def nested(values):
    return torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 2, 5]))


def compressed():
    rows, columns = torch.tensor([0, 1, 3]), torch.tensor([2, 0, 2])
    return torch.sparse_csr_tensor(rows, columns, torch.ones(3), (2, 3))


def coordinates():
    return torch.sparse_coo_tensor(
        torch.tensor([[0, 1, 1], [2, 0, 2]]), torch.ones(3), (2, 3)
    )


@pytest.fixture(scope="module", autouse=True)
def _operators():
    library = torch.library.Library("mm_test", "DEF")
    for name in ("known", "unknown"):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, lambda x: x[:2].double(), "CPU")
    library.impl("known", lambda x: x.new_empty(2, dtype=torch.float64), "Meta")
    yield
    library._destroy()


@pytest.mark.parametrize("name", PLAIN)
def test_what_meta_knows_has_the_metadata_of_the_cpu(name):
    real = PLAIN[name]()
    with record() as trace:
        made = PLAIN[name]()
    assert made.device.type == "meta"
    assert (made.shape, made.dtype, made.layout) == (
        real.shape,
        real.dtype,
        real.layout,
    )
    assert len(trace.ops) > 0


REFUSED = {
    "coo": (lambda: coordinates() @ torch.ones(3, 4), "aten.mm.default (sparse)"),
    "coalesce": (lambda: coordinates().coalesce(), "aten._coalesce.default (sparse)"),
    "csr": (lambda: compressed() @ torch.ones(3, 4), "aten.mm.default (sparse)"),
    "nested": (
        lambda: torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]),
        "aten._nested_tensor_from_tensor_list.default (nested)",
    ),
    "quantized": (
        lambda: torch.quantize_per_channel(
            torch.ones(3, 4), torch.ones(3), torch.zeros(3), 0, torch.qint8
        ),
        "aten.quantize_per_channel.default (quantized)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_meta_cannot_do_is_refused_by_name_and_the_cpu_can(name):
    program, op = REFUSED[name]
    with pytest.raises((RuntimeError, NotImplementedError)) as caught, record():
        program()
    (note,) = caught.value.__notes__
    assert note.startswith(f"meta_magic: on meta torch has no {op}. To go on, compute")
    with record() as trace, torch.device("cpu"):
        assert not program().is_meta
    names = [call.op for call in trace.ops]
    assert op.split(" ")[0] in names or "a nested tensor" in trace.notes[-1].text


def test_an_encoder_with_padding_is_told_how_to_do_without_nested_tensors():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    mask = torch.tensor([[False, False, True], [False, False, False]])

    def run(**options):
        encoder = nn.TransformerEncoder(layer, 1, **options).eval()
        with torch.no_grad():
            return encoder(torch.ones(2, 3, 8), src_key_padding_mask=mask)

    real = run()
    layer, mask = layer.to("meta"), mask.to("meta")
    with pytest.raises(NotImplementedError) as caught, record():
        run()
    assert caught.value.__notes__[0].endswith("with enable_nested_tensor=False.")
    with record():
        assert run(enable_nested_tensor=False).shape == real.shape


def test_an_operator_without_a_kernel_on_meta_is_named():
    with pytest.raises(NotImplementedError) as caught, record():
        torch.ops.mm_test.unknown(torch.ones(3))
    (note,) = caught.value.__notes__
    assert note == (
        "meta_magic: mm_test.unknown.default has no kernel on meta that says what it "
        "returns. To go on, compute it under `with torch.device('cpu'):`, or write one "
        "(see torch.library.register_fake)."
    )


def test_a_quantized_tensor_that_meta_would_make_wrong_is_refused():
    # Torch's own kernel returns float32 on meta, qint8 on the CPU.
    with (
        pytest.raises(MetaMagicError, match=r"torch\.float32 on meta, not of torch\.q"),
        record(),
    ):
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    with record() as trace, torch.device("cpu"):
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8).dequantize()
    assert trace.ops[1].outputs[0].dtype == torch.qint8


def test_attention_of_nested_tensors_is_refused_by_name():
    with pytest.raises(MetaMagicError, match="of nested tensors cannot run"), record():
        q = nested(torch.ones(5, 8)).unflatten(-1, [2, 4]).transpose(1, 2)
        functional.scaled_dot_product_attention(q, q, q)


def test_sparse_gradients_that_lost_their_values_are_noted():
    with record() as trace:
        layer = nn.Embedding(10, 4, sparse=True)
        layer(torch.tensor([1, 2])).sum().backward()
    assert layer.weight.grad.layout is torch.sparse_coo
    (note,) = trace.notes
    assert note.text.startswith(
        "aten.clone.default returned a sparse tensor without values, as torch does"
    )


def test_a_sparse_tensor_with_its_values_is_not_noted():
    with record() as trace:
        made = coordinates()
    assert (made._nnz(), made.layout) == (3, torch.sparse_coo)
    assert trace.notes == ()


def test_fake_tensors_are_counted():
    with record() as trace, torch._subclasses.FakeTensorMode():
        torch.ones(3) + 1
    (note,) = trace.notes
    assert (note.kind, note.line) == ("foreign", None)
    assert note.text == "2 operators on FakeTensor were not recorded"
    assert len(trace.ops) == 0


def test_what_make_fx_traces_in_a_cell_are_the_operators_again_and_again():
    for _ in range(2):
        with record():
            graph = make_fx(lambda x: x.sin() + 1)(torch.ones(3)).graph
        targets = [node.target for node in graph.nodes if node.op == "call_function"]
        assert targets == [aten.sin.default, aten.add.Tensor]


@pytest.fixture
def _four_ranks():
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("_four_ranks")
def test_a_distributed_tensor_is_recorded_as_what_one_rank_computes():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (4,))
    with record() as trace:
        weight = distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)])
        x = distribute_tensor(torch.ones(2, 4), mesh, [Replicate()])
        y = x @ weight.t()
        whole = y.full_tensor()
    (product,) = (call for call in trace.ops if call.op == "aten.mm.default")
    # A quarter of the eight rows of the weight.
    assert [t.shape for t in product.inputs] == [(2, 4), (4, 2)]
    assert (y.shape, whole.shape) == ((2, 8), (2, 8))
    assert any("all_gather_into_tensor" in call.op for call in trace.ops)


def test_a_nested_tensor_on_the_cpu_goes_through_a_module():
    with record() as trace, torch.device("cpu"):
        rows = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
        made = nn.Linear(3, 4)(rows)
    assert [row.shape for row in made.unbind()] == [(2, 4), (4, 4)]
    assert any("nested" in note.text for note in trace.notes)


def test_torch_jit_traces_a_module_and_its_operators_are_recorded_alone():
    def trace_module():
        module = nn.Linear(3, 4)
        return torch.jit.trace(module, torch.zeros(2, 3))(torch.zeros(2, 3)).shape

    with record() as trace:
        assert trace_module() == (2, 4)
    assert "aten.eq.Scalar" not in {op.op for op in trace.ops}
    assert [op.op for op in trace.ops].count("aten.addmm.default") == 2
