"""The CPU is asked what it refuses, and nothing is left of the asking."""

import gc

import torch

from meta_magic import record


def test_a_gradient_that_was_asked_about_is_taken_over_without_a_copy():
    gc.collect()
    gc.disable()
    try:
        with record(cache=False) as trace:
            weight = torch.ones(7, requires_grad=True)
            weight[torch.ones(7, dtype=torch.bool)].sum().backward()
    finally:
        gc.enable()
    assert trace.ops[-2].op == "aten.index_put.default"
    assert trace.ops[-1].op == "aten.detach.default"


def test_what_a_mask_selects_is_not_refused_as_another_mask_would_be():
    with record():
        weight = torch.ones(7, 5, requires_grad=True)
        weight[torch.arange(7) < 2].sum().backward()
    assert weight.grad.shape == (7, 5)
