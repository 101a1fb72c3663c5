"""What is the same text, and what is not."""

import pytest
import torch

from tests.conformance.script_texts import compare_texts, normalize


def test_values_that_differ_are_another_text():
    assert compare_texts("loss: 0.25", "loss: 0.26") == "other"


@pytest.mark.parametrize(
    ("real", "recorded"),
    [
        ("tensor([1., 2.])", "tensor([1., 2.], device='meta', size=(2,))"),
        (
            "tensor(3., grad_fn=<SumBackward0>)",
            "tensor(3., device='meta', size=(), grad_fn=<SumBackward0>)",
        ),
        (
            "Out[3]: tensor([True])",
            "Out[3]: \ntensor([True],\n device='meta', size=(1,), dtype=torch.bool)",
        ),
        ("on cpu", "on meta"),
        ("torch.FloatTensor", "torch.meta.FloatTensor"),
        ("<Linear at 0x7f6d0d2a1c10>", "<Linear at 0x7f6d0d2a1d60>"),
        ("epoch 1 took 0.31s", "epoch 1 took 2.4s"),
        ("loss 2.5 | ms/batch 11.25", "loss 2.5 | ms/batch 3.5"),
        ("[00:03<00:01] done", "[00:13<00:02] done"),
    ],
)
def test_metadata_devices_addresses_and_times_may_differ(real, recorded):
    assert compare_texts(real, recorded) == "same"


def test_what_torch_writes_of_a_real_tensor_keeps_its_values():
    values = torch.tensor([[1.5, -2.0]], requires_grad=True) * 1
    assert normalize(repr(values)) == "tensor([[ 1.5000, -2.0000]])"


def test_a_tensor_that_does_not_show_its_values_is_a_class_of_its_own():
    met = "x is tensor(..., device='meta', size=(2,)) of 5"
    assert compare_texts("x is tensor([1., 2.]) of 5", met) == "without values"


def test_other_words_around_a_tensor_without_values_are_another_text():
    met = "x is tensor(..., device='meta', size=(2,)) of 6"
    assert compare_texts("x is tensor([1., 2.]) of 5", met) == "other"


def test_what_differs_between_two_real_runs_is_unstable():
    assert compare_texts("seed 17 loss 2", "seed 23 loss 2", "seed 5 loss 2") == (
        "unstable"
    )


def test_what_is_alike_in_two_real_runs_must_be_alike_under_meta():
    assert compare_texts("seed 17 loss 2", "seed 23 loss 3", "seed 5 loss 2") == "other"


def test_fewer_words_than_in_two_real_runs_are_another_text():
    assert compare_texts("seed 17 loss 2", "seed 23", "seed 5 loss 2") == "other"


def test_a_tensor_within_the_text_of_a_text_is_compared_without_its_metadata():
    wanted = "Out[3]: 'truth: tensor([0.8047])'"
    met = "Out[3]: \"truth: tensor([0.8047], device='meta', size=(1,))\""
    assert compare_texts(wanted, met) == "same"
    assert compare_texts(wanted, met.replace("8047", "8048")) == "other"


def test_how_many_loops_a_time_was_taken_of_is_not_compared():
    wanted = "253 us +- 15.7 us per loop (mean of 7 runs, 1,000 loops each)"
    met = "57.3 us +- 10.5 us per loop (mean of 7 runs, 10,000 loops each)"
    assert compare_texts(wanted, met) == "same"
