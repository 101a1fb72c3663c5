"""verify(): recorded metadata and those of a real run."""

import pytest
import torch
from torch import nn

from meta_magic import ReplayError, ValueLimits, record, replay, verify


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


def test_a_stride_that_differs_on_meta_is_listed_with_both_values():
    def singular_vectors(device):
        return torch.linalg.svd(torch.eye(5, device=device)[:3])[2]

    wanted = singular_vectors("meta").stride(), singular_vectors("cpu").stride()
    assert wanted[0] != wanted[1], "torch has mended it: choose another operator"
    with record(as_device="meta") as trace:
        singular_vectors(None)
    strides = verify(trace).query("field == 'stride' and output == 2")
    assert [*strides["op"]] == ["aten._linalg_svd.default"]
    assert [*zip(strides["recorded"], strides["real"], strict=True)] == [wanted]


def test_a_shape_that_differs_on_meta_is_listed_once():
    with record(as_device="meta") as trace:
        nn.BatchNorm1d(3).eval()(torch.ones(2, 3)).sum()
    differences = verify(trace)
    assert {*differences["op"]} == {"aten.native_batch_norm.default"}
    assert {*differences["field"]} == {"shape"}
    assert differences.attrs["n_checked"] == len(trace.ops)


def test_a_difference_knows_its_line_and_module():
    class Spectrum(nn.Module):
        def forward(self, x):
            return torch.linalg.svd(x)

    with record(as_device="meta") as trace:
        model = Spectrum()
        model(torch.eye(5)[:3])
    first = verify(trace).iloc[0]
    assert trace.ops[first["index"]].op == first["op"]
    assert (first["line"], first["module"]) == (
        trace.ops[first["index"]].line,
        trace.ops[first["index"]].module,
    )


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
