"""The devices of this machine, their free memory, and how fast they are.

:func:`measure_rates` times a few products, sums and random numbers once in a process;
by these rates :func:`estimate_seconds` estimates how long a step of a replay takes.
"""

import time
from collections.abc import Callable
from functools import cache, lru_cache
from math import prod
from pathlib import Path
from typing import Final, NamedTuple

import psutil
import torch

from meta_magic.errors import MetaMagicError
from meta_magic.replaying.steps import Step, StepKind
from meta_magic.replaying.streams import count_words
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.trace.formulas.call_costs import count_flops
from meta_magic.trace.signature import Signature

GROUPS: Final = Path("/sys/fs/cgroup")
CONTROL_GROUPS: Final = (
    (GROUPS, "memory.max", "memory.current"),
    (GROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""Files with the memory limit and use of a container: cgroups version 2, then 1."""


def read_device(
    device: str | torch.device, error: type[MetaMagicError]
) -> torch.device:
    """Return a device of this machine, or raise ``error``."""
    there = list_devices()
    listed = f"there {'is' if len(there) == 1 else 'are'} {', '.join(there)}"
    try:
        read = torch.device(device)
    except (RuntimeError, TypeError):
        raise error(f"{device!r} names no device: {listed}") from None
    if str(read) == "cuda" and torch.cuda.is_available():
        read = torch.device("cuda", torch.cuda.current_device())
    if read.type == "cpu":
        return torch.device("cpu")
    if str(read) not in there:
        raise error(f"there is no device {str(device)!r} to put data on: {listed}")
    return read


def list_devices() -> list[str]:
    """Return the names of the devices of this machine."""
    return ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]


def free_nbytes(device: torch.device) -> int:
    """Return the free bytes of a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min([int(psutil.virtual_memory().available), *_free_in_container()])


def _free_in_container() -> list[int]:
    """Return the free bytes of the container; [] without a limit.

    Beyond the limit the process is killed, however much memory the machine has.
    """
    for folder, limit, used in CONTROL_GROUPS:
        try:
            n_limit, n_used = (int((folder / f).read_text()) for f in (limit, used))
            stat = dict(
                map(str.split, (folder / "memory.stat").read_text().splitlines())
            )
        except (OSError, ValueError):  # no such file, or the limit is "max"
            continue
        return [n_limit - n_used + int(stat.get("inactive_file", 0))]
    return []


RECURRENT: Final = "aten.mkldnn_rnn_layer"
SMALL: Final = 2**25
"""FLOPs of a product below which it is small: a small one is slower per FLOP."""

N_ROUNDS: Final = 4

STEP: Final = 5
"""Overhead of a step, in times of a call of torch on one element."""


class Rates(NamedTuple):
    """The speed of a device, per second.

    Attributes:
        large: FLOPs in large products of matrices.
        small: FLOPs in small products.
        nbytes: Bytes that are read and written.
        drawn: Random numbers.
        steps: Steps on tensors of one element.
    """

    large: float
    small: float
    nbytes: float
    drawn: float
    steps: float


@cache
def measure_rates(device: torch.device) -> Rates:
    """Return the speed of a device; it is measured once, in about 0.1 s."""
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
    """Return the seconds of a call: the best of a few rounds of ``n`` calls.

    The mean would include moments when another process has the core.
    """
    call()
    _synchronize(device)
    rounds = []
    for _ in range(N_ROUNDS):
        started = time.perf_counter()
        for _ in range(n):
            call()
        _synchronize(device)
        rounds.append((time.perf_counter() - started) / n)
    return min(rounds)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def estimate_seconds(step: Step, rates: Rates, device: torch.device) -> float:
    """Return about how many seconds a step takes on a device.

    Known are its FLOPs, bytes and random numbers, not how good the kernel is.
    """
    seconds = 1 / rates.steps
    call, signature = step.call, step.call.signature
    if step.kind == StepKind.ALLOCATE or signature.is_view:
        return seconds
    if step.kind == StepKind.DRAW and count_words(call, device) is not None:
        return seconds  # its words are skipped
    if step.draw is not None:
        return seconds + prod(call.drawn.shape) / rates.drawn
    flops, n_products = count_products(signature)
    rate = rates.large if flops >= SMALL * n_products else rates.small
    tensors = (*signature.inputs, *signature.outputs)
    nbytes = sum(prod(g.shape) * g.dtype.itemsize for g in tensors)
    return seconds + flops / rate + nbytes / rates.nbytes


@lru_cache(maxsize=2**10)
def count_products(signature: Signature) -> tuple[int, int]:
    """Return the FLOPs of a call, and the count of its matrix products."""
    flops, n = count_flops(signature) or 0, 1
    if signature.op == "aten.bmm.default":
        n = signature.outputs[0].shape[0]
    if signature.op.startswith(RECURRENT):
        n_passes = 2 if "backward" in signature.op else 1
        n = signature.inputs[0].shape[0] * n_passes  # one after the other
    return flops, max(n, 1)
