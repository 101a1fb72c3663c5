"""replay(): recorded values and those of a real run."""

import pytest
import torch
from torch import nn
from torch.ao.quantization.fake_quantize import default_fused_per_channel_wt_fake_quant

from meta_magic import ReplayError, ValueLimits, record, replay, verify


def test_an_output_has_the_value_of_a_real_run():
    def compute():
        torch.manual_seed(3)
        return torch.randn(4, 5).softmax(1).t()[1:]

    with record() as trace:
        compute()
    (made,) = replay(trace, trace.ops[-1].outputs)
    assert torch.equal(made, compute())
    assert made.stride() == compute().stride()


def test_tensors_that_shared_a_storage_share_one_again():
    with record() as trace:
        torch.ones(2, 3).t()
    base, view = replay(trace, [call.outputs[0] for call in trace.ops])
    base.zero_()
    assert view.sum() == 0


@pytest.mark.parametrize("wanted", [3, "x", None])
def test_an_object_that_is_no_tensor_is_an_error(wanted):
    with record() as trace:
        torch.ones(2)
    with pytest.raises(ReplayError, match=f"not a {type(wanted).__name__}"):
        replay(trace, [wanted])


def test_a_tensor_of_another_trace_is_an_error():
    with record() as trace:
        torch.ones(2)
    with record() as other:
        torch.ones(2) + torch.ones(2)
    with pytest.raises(ReplayError, match="no tensor with storage_id 2"):
        replay(trace, other.ops[-1].outputs)


def test_a_live_tensor_is_replayed_with_its_strides():
    with record() as trace:
        torch.manual_seed(0)
        x = torch.randn(2, 3)
    torch.manual_seed(0)
    wanted = torch.randn(2, 3)
    assert torch.equal(replay(trace, x), wanted)
    made = replay(trace, [x, x.T[1:], trace.ops[-1].outputs[0]])
    assert torch.equal(made[1], wanted.T[1:])
    assert made[0].data_ptr() == made[2].data_ptr()
    assert x.is_meta


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_live_tensor_that_the_trace_did_not_make_is_an_error(device):
    with record() as trace:
        torch.ones(2)
    with pytest.raises(ReplayError, match=r"did not make this tensor of shape \(3,\)"):
        replay(trace, torch.ones(3, device=device))


def write_half():
    x = torch.empty(4)
    x[:2] = 1
    return x


def test_elements_that_were_never_written_are_refused():
    with record() as trace:
        half = write_half()
        first, doubled = half[:2] * 2, half * 2
    for raw in (half, doubled):
        with pytest.raises(ReplayError, match=r"never written since aten\.empty"):
            replay(trace, raw)
    assert torch.equal(replay(trace, first), torch.full((2,), 2.0))


def test_an_operator_resizes_a_constant():
    def quantize():
        quantizer = default_fused_per_channel_wt_fake_quant()
        return quantizer(torch.arange(6.0).view(2, 3)).sum().item()

    with record():
        found = quantize()
    assert found == quantize()


# verify(): recorded metadata and those of a real run


def linear_step():
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.BatchNorm1d(8))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(3, 4)).square().mean().backward()
    optimizer.step()


def test_a_training_step_has_no_differences():
    with record() as trace:
        linear_step()
    differences = verify(trace)
    assert list(differences.index) == []
    assert differences.attrs == {"n_calls": len(trace.ops), "n_checked": len(trace.ops)}


def test_a_stride_that_differs_on_meta_is_listed_with_both_values_line_and_module():
    class Spectrum(nn.Module):
        def forward(self, x):
            return torch.linalg.svd(x)[2]

    wanted = [Spectrum()(torch.eye(5, device=d)[:3]).stride() for d in ("meta", "cpu")]
    assert wanted[0] != wanted[1], "torch has mended it: choose another operator"
    with record(as_device="meta") as trace:
        model = Spectrum()
        model(torch.eye(5)[:3])
    (found,) = (
        verify(trace).query("field == 'stride' and output == 2").to_dict("records")
    )
    call = trace.ops[found["index"]]
    assert found["op"] == call.op == "aten._linalg_svd.default"
    assert [found["recorded"], found["real"]] == wanted
    assert (found["line"], found["module"]) == (call.line, call.module)


def test_a_shape_that_differs_on_meta_is_listed_once():
    with record(as_device="meta") as trace:
        nn.BatchNorm1d(3).eval()(torch.ones(2, 3)).sum()
    differences = verify(trace)
    assert {*differences["op"]} == {"aten.native_batch_norm.default"}
    assert {*differences["field"]} == {"shape"}
    assert differences.attrs["n_checked"] == len(trace.ops)


def test_a_call_that_fails_for_real_is_an_error_row():
    with record(limits=ValueLimits(nbytes=0)) as trace:
        index = torch.rand(1).add(7).long()  # too expensive to know when recorded
        torch.ones(3).index_select(0, index)
    differences = verify(trace)
    assert [*differences["field"]] == ["error"]
    assert "index out of range" in differences["real"][0]


def test_calls_beyond_the_bound_are_listed_as_not_checked():
    with record() as trace:
        torch.ones(1000).sum()
        torch.ones(3).sum()
    differences = verify(trace, max_nbytes=400)
    assert [*differences["index"]] == [0, 1]
    assert {*differences["field"]} == {"not checked"}
    assert "needs 3.9 KiB of 400 bytes" in differences["real"][0]
    assert differences.attrs == {"n_calls": 4, "n_checked": 2}


def test_memory_stays_within_the_bound():
    with record() as trace:
        x = torch.ones(100)
        for _ in range(50):
            x = x * 2
    assert list(verify(trace, max_nbytes=1200).index) == []


def test_a_meta_tensor_from_outside_is_replaced_by_zeros():
    outside = torch.ones(3, device="meta")
    with record() as trace:
        outside + 1
    assert list(verify(trace).index) == []


@pytest.mark.parametrize("device", ["cuda:99", "nonsense", "meta", 3.5, None])
def test_an_unknown_device_is_an_error_that_names_it(device):
    with record() as trace:
        torch.ones(2)
    with pytest.raises(ReplayError, match=str(device)):
        verify(trace, device)
    with pytest.raises(ReplayError, match=str(device)):
        replay(trace, trace.ops[0].outputs, device)
