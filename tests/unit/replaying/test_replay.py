"""replay(): recorded values and those of a real run."""

import pytest
import torch
from torch.ao.quantization.fake_quantize import default_fused_per_channel_wt_fake_quant

from meta_magic import ReplayError, record, replay


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
