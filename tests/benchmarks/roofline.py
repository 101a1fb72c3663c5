"""A roofline's time of training steps beside the time that this CPU takes for them.

``python -m tests.benchmarks.roofline`` prints a Markdown table. Peak and bandwidth of
one thread are measured, for this machine has no sheet; CPU time, the best of several.
"""

import time
import warnings
from collections.abc import Callable

import torch
from torch import nn

import meta_magic as mm
from tests.benchmarks.flop_models import Recurrent, UNet

N_ROUNDS = 7
SIDE = 1024
N_COPIED = 2**25

Step = Callable[[], object]


def take_time(run: Step) -> float:
    """Return the CPU time of the best of several runs, in seconds."""
    taken = []
    for _ in range(N_ROUNDS):
        started = time.thread_time()
        run()
        taken.append(time.thread_time() - started)
    return min(taken)


def measure_device() -> mm.Device:
    """Return what one thread computes and copies in a second."""
    left, right = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    source, target = torch.randn(N_COPIED), torch.empty(N_COPIED)
    flops = 2 * SIDE**3 / take_time(lambda: left @ right)
    bandwidth = 2 * source.nbytes / take_time(lambda: target.copy_(source))
    return mm.Device(
        name="here",
        title=f"one thread: {flops / 1e9:.0f} GFLOP/s, {bandwidth / 1e9:.1f} GB/s",
        peaks=(("float32", flops),),
        bandwidth=bandwidth,
        nbytes=0,
        source="measured",
    )


def build_step(model: nn.Module, *inputs: torch.Tensor) -> Step:
    """Return a training step by Adam."""
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(*inputs).sum().backward()
        optimizer.step()

    step()  # the first one makes the optimizer's state, too
    return step


def build_gpt2() -> Step:
    """Six layers of GPT-2, two sequences of 128 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    class Logits(GPT2LMHeadModel):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = super().forward(tokens).logits
            return logits

    config = GPT2Config(n_layer=6, use_cache=False)
    return build_step(Logits(config), torch.randint(0, 50257, (2, 128)))


def build_encoder() -> Step:
    """Four layers of torch's encoder, four sequences of 128."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return build_step(model, torch.randn(4, 128, 256))


STEPS = {
    "GPT-2, 6 layers": build_gpt2,
    "nn.TransformerEncoder": build_encoder,
    "U-Net": lambda: build_step(UNet(), torch.randn(4, 3, 128, 128)),
    "LSTM": lambda: build_step(Recurrent(), torch.randint(0, 1000, (8, 64))),
}


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    device = measure_device()
    print(device.title)
    print("| training step | operators | CPU, ms | roofline, ms | ratio |")
    print("| --- | --: | --: | --: | --: |")
    for name, build in STEPS.items():
        seconds = take_time(build())
        with mm.record(as_device="cpu"):
            step = build()
        with mm.record(as_device="cpu") as trace:
            step()
        estimate = trace.cost.seconds(device)
        print(
            f"| {name} | {len(trace.ops):,} | {1e3 * seconds:.0f} |"
            f" {1e3 * estimate:.0f} | {seconds / estimate:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
