"""Memory and time of training steps, beside those of a real GPU, where there is one."""

import statistics

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, ResNetConfig
from transformers import ResNetForImageClassification as ResNet

from meta_magic import record
from meta_magic.cost.device_table import list_devices

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device"
)

LARGEST_ERROR = 0.05
LARGEST_RATIO = 2


def make_gpt2():
    """Return a training step of GPT-2."""
    model = GPT2LMHeadModel(GPT2Config()).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 50257, (8, 512), device="cuda")

    def step():
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()

    return step


def make_resnet():
    """Return a training step of a ResNet-50."""
    model = ResNet(ResNetConfig()).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(32, 3, 224, 224, device="cuda")

    def step():
        optimizer.zero_grad()
        model(images).logits.sum().backward()
        optimizer.step()

    return step


def make_encoder():
    """Return a training step of an encoder in bfloat16."""
    layer = nn.TransformerEncoderLayer(1024, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 12).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.randn(16, 512, 1024, device="cuda", dtype=torch.bfloat16)

    def step():
        optimizer.zero_grad()
        model(x).float().pow(2).mean().backward()
        optimizer.step()

    return step


def train(make):
    """Make a model and two steps: in the first the optimizer makes its states."""
    step = make()
    step()
    step()


PROGRAMS = pytest.mark.parametrize("make", [make_gpt2, make_resnet, make_encoder])


@PROGRAMS
def test_the_peak_is_that_of_the_allocator(make):
    with record(as_device="cuda") as trace:
        train(make)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    train(make)
    taken = torch.cuda.max_memory_allocated() - before
    major, _ = torch.cuda.get_device_capability()
    predicted = trace.memory.as_allocated(major=major).peak_nbytes
    assert abs(predicted - taken) <= LARGEST_ERROR * taken


def find_device():
    """Return the name of this GPU among those that are known; skip if it is none."""
    name = torch.cuda.get_device_name().replace("NVIDIA", "").split()
    known = [
        d.name for d in list_devices() if all(w in d.title.split() for w in name[:1])
    ]
    if not known:
        pytest.skip(f"no data of {torch.cuda.get_device_name()} are known")
    return known[-1]


@PROGRAMS
def test_the_time_is_within_a_factor_of_a_roofline(make):
    device = find_device()
    with record(as_device="cuda") as trace:
        train(make)
    work = trace.cost.roofline(device).by_phase
    estimated = sum(work[phase] for phase in ("forward", "backward", "optimizer")) / 2
    step = make()
    step()  # what is done once: libraries, kernels that are compiled or chosen
    step()
    seconds = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(end) / 1000)
    ratio = statistics.median(seconds) / estimated
    assert 1 / LARGEST_RATIO <= ratio <= LARGEST_RATIO
