"""What calls compute and move, as sent, and the time that the browser makes of it."""

import pytest
import torch
from torch import nn

import meta_magic as mm
from meta_magic.cost.device_table import list_devices
from meta_magic.view.payload import build_payload, pack
from tests.run_node import run_node


@pytest.fixture(scope="module")
def trace():
    from transformers import GPT2Config, GPT2LMHeadModel

    with mm.record() as trace:
        model = GPT2LMHeadModel(GPT2Config(n_layer=2))
        optimizer = torch.optim.AdamW(model.parameters())
        tokens = torch.zeros(2, 64, dtype=torch.long)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        nn.functional.conv2d(torch.ones(1, 3, 8, 8), torch.ones(4, 3, 3, 3))
    return trace


def send(trace):
    """Return the work that is sent, and the devices by name, a record each."""
    sent = build_payload(trace)["work"]
    names = [*sent["devices"]]
    rows = zip(*sent["devices"].values(), strict=True)
    devices = [dict(zip(names, row, strict=True)) for row in rows]
    return sent, {device["name"]: device for device in devices}


def test_the_browser_takes_as_long_on_every_device(trace):
    cost, found = trace.cost, run_node("work_dump.mjs", given=pack(trace))
    assert [*found] == [device.name for device in list_devices()]
    for name, times in found.items():
        line = cost.roofline(name)
        assert times["seconds"] == [*line.seconds_each], name
        assert times["is_bound_by_memory"] == [*line.is_bound_by_memory], name


def test_what_a_causal_mask_leaves_out_is_sent():
    with mm.record(as_device="cuda") as trace:
        heads = [torch.empty(1, 1, 256, 64) for _ in range(3)]
        nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
    total = trace.cost.total
    numbers = [*trace.program.signature_numbers()]
    skipped = sum(send(trace)[0]["skipped"][number] for number in numbers)
    assert skipped == total.flops - total.flops_needed > 0
