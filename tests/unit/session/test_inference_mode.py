"""Values of what inference mode made."""

import pytest
import torch
from torch import nn

from meta_magic import record

READERS = {
    "tolist": lambda y: y.tolist(),
    "item": lambda y: y[0, 0].item(),
    "numpy": lambda y: y.numpy().tolist(),
    "truth": lambda y: bool((y > 0).any()),
    "mask": lambda y: tuple(y[y > 0].shape),
    "equal": lambda y: torch.equal(y, y),
}


@pytest.mark.parametrize("name", READERS)
def test_what_inference_mode_made_is_read_after_it_as_for_real(name):
    def infer():
        torch.manual_seed(0)
        model = nn.Linear(2, 3)
        with torch.inference_mode():
            y = model(torch.ones(1, 2))
        return READERS[name](y)

    with record(as_device="cpu"):
        met = infer()
    assert met == infer()


@pytest.mark.parametrize("cache", [True, False])
def test_a_view_made_in_inference_mode_counts_with_its_base(cache):
    for _ in range(3):  # the later ones are served
        with record(cache=cache):
            x = torch.ones(2, 3).add_(1)
            with torch.inference_mode():
                flat = x.ravel()
        assert flat._version == x._version == 1
