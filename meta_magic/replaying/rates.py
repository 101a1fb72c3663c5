"""About how long the steps of a replay take, by what a device does in a moment.

A few products, sums and random numbers are timed once in a process. Of what a step
computes its FLOPs, its bytes and its call count; how well a kernel does is not known.
"""

import time
from collections.abc import Callable
from functools import cache, lru_cache
from math import prod
from typing import Final, NamedTuple

import torch

from meta_magic.replaying.steps import Step, StepKind
from meta_magic.replaying.word_counts import count_words
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.trace.formulas.call_costs import count_flops
from meta_magic.trace.signature import Signature

__all__ = ["Rates", "count_products", "estimate_seconds", "measure_rates"]

RECURRENT: Final = "aten.mkldnn_rnn_layer"
SMALL: Final = 2**25
"""FLOPs of a product below which it counts as small: those take longer for each."""

N_ROUNDS: Final = 4

STEP: Final = 5
"""How long a step takes besides, in calls of torch that do nothing: 13 us where such a
one took 2.9."""


class Rates(NamedTuple):
    """What a device does in a second.

    Attributes:
        large: FLOPs in large products of matrices.
        small: FLOPs in small ones.
        nbytes: Bytes that are read and written.
        drawn: Random numbers.
        steps: Steps that compute next to nothing.
    """

    large: float
    small: float
    nbytes: float
    drawn: float
    steps: float


@cache
def measure_rates(device: torch.device) -> Rates:
    """Return what a device does in a second: it takes some 0.1 s, once."""
    with RealTorch(), torch.no_grad():
        large, small, weight, many, one = (
            torch.ones(shape, dtype=torch.float32, device=device)
            for shape in ((512, 512), (32, 256), (256, 512), (2**23,), (1,))
        )
        generator = torch.Generator(device)
        seconds = [
            time_calls(call, n, device)
            for call, n in (
                (lambda: large @ large, 2),
                (lambda: small @ weight, 25),
                (lambda: many + many, 1),
                (lambda: many[: 2**20].normal_(generator=generator), 1),
                (lambda: one + one, 500),
            )
        ]
    amounts = (2 * 512**3, 2 * 32 * 256 * 512, 3 * many.nbytes, 2**20, 1 / STEP)
    return Rates(*(n / taken for n, taken in zip(amounts, seconds, strict=True)))


def time_calls(call: Callable[[], object], n: int, device: torch.device) -> float:
    """Return the seconds that a call takes: the best of a few rounds of ``n`` calls.

    The mean would be far off where another process takes the core for a moment.
    """
    call()
    wait_for(device)
    rounds = []
    for _ in range(N_ROUNDS):
        started = time.perf_counter()
        for _ in range(n):
            call()
        wait_for(device)
        rounds.append((time.perf_counter() - started) / n)
    return min(rounds)


def wait_for(device: torch.device) -> None:
    """Return when a device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def estimate_seconds(step: Step, rates: Rates, device: torch.device) -> float:
    """Return about how long a step takes on a device, which does as much in a second.

    What is skipped takes a moment, however much it would draw.
    """
    seconds = 1 / rates.steps
    call, signature = step.call, step.call.signature
    if step.kind == StepKind.ALLOCATE or signature.is_view:
        return seconds
    if step.kind == StepKind.DRAW and count_words(call, device) is not None:
        return seconds
    if step.draw is not None:
        return seconds + prod(call.drawn.shape) / rates.drawn
    flops, n_products = count_products(signature)
    rate = rates.large if flops >= SMALL * n_products else rates.small
    tensors = (*signature.inputs, *signature.outputs)
    nbytes = sum(prod(g.shape) * g.dtype.itemsize for g in tensors)
    return seconds + flops / rate + nbytes / rates.nbytes


@lru_cache(maxsize=2**10)
def count_products(signature: Signature) -> tuple[int, int]:
    """Return the FLOPs of a call, and in how many products of matrices they are."""
    flops, n = count_flops(signature) or 0, 1
    if signature.op == "aten.bmm.default":
        n = signature.outputs[0].shape[0]
    if signature.op.startswith(RECURRENT):
        n_passes = 2 if "backward" in signature.op else 1
        n = signature.inputs[0].shape[0] * n_passes  # its steps, one after the other
    return flops, max(n, 1)
