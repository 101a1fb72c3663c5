"""Loops of small calls in plain Python, as tutorials have them, and a value of each.

``python -m tests.benchmarks.loops`` prints a table: CPU seconds of the real
loop, of the recorded one, and of a value after it.
"""

import argparse
import random
import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch
from torch import nn

import meta_magic as mm

Loop: TypeAlias = Callable[[float], Callable[[], Any]]
"""Runs a share of its steps; returns what reads a value of it."""

N_PAIRS: Final = 228_146


def make_pairs(share: float) -> list[tuple[int, int]]:
    """Return pairs of letters of words made at random."""
    choice = random.Random(0)
    return [
        (choice.randrange(27), choice.randrange(27))
        for _ in range(int(share * N_PAIRS))
    ]


def count_pairs(share: float) -> Callable[[], Any]:
    """Count pairs in a table."""
    table = torch.zeros((27, 27), dtype=torch.int32)
    for i, j in make_pairs(share):
        table[i, j] += 1
    return table[0].tolist


def sum_logarithms(share: float) -> Callable[[], Any]:
    """Add the logarithms of chances up."""
    chances: Any = torch.rand((27, 27))
    total = 0.0
    for i, j in make_pairs(share):
        total += torch.log(chances[i, j])
    return lambda: float(total)


def read_logarithms(share: float) -> Callable[[], Any]:
    """Do so in Python."""
    chances, total = torch.rand((27, 27)), 0.0
    for i, j in make_pairs(share):
        total += torch.log(chances[i, j]).item()
    return lambda: total


def regress(share: float, *, has_values: bool = False) -> Callable[[], Any]:
    """Fit a logistic regression that is written by hand."""
    features = torch.randn(100, 2)
    wanted = (features[:, 0] > 0).float()
    weight, bias = torch.zeros(2, requires_grad=True), torch.zeros(1).requires_grad_()
    for _ in range(int(3000 * share)):
        chance = torch.sigmoid(features @ weight + bias)
        wrong = (1 - wanted) * torch.log(1 - chance)
        loss = -(wanted * torch.log(chance) + wrong).mean()
        loss.backward()
        with torch.no_grad():
            for parameter in (weight, bias):
                parameter -= 0.1 * parameter.grad  # noqa: PLW2901  in place
                parameter.grad.zero_()
        if has_values:
            loss.item()
    return weight.tolist


def read_each_step(share: float) -> Callable[[], Any]:
    """Read a value in each of 10,000 steps."""
    state, total = torch.zeros(3), 0.0
    for _ in range(int(10_000 * share)):
        state = state * 0.9 + 1
        total += state[0].item()
    return lambda: total


def train(share: float, *, has_values: bool = False) -> Callable[[], Any]:
    """Train a multilayer perceptron with two layers."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in range(int(1000 * share)):
        loss = model(torch.randn(32, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if has_values:
            loss.item()
    return loss.item


LOOPS: Final[dict[str, Loop]] = {
    "counting pairs": count_pairs,
    "a sum of logarithms": sum_logarithms,
    "the same, each read": read_logarithms,
    "a logistic regression": regress,
    "the same, each loss read": lambda share: regress(share, has_values=True),
    "a value in each step": read_each_step,
    "a perceptron": train,
    "the same, its loss read each time": lambda share: train(share, has_values=True),
}


def measure(loop: Loop, share: float) -> tuple[float, float, object]:
    """Return the seconds of a loop, of a value after it, and that."""
    torch.manual_seed(0)
    start = time.process_time()
    read = loop(share)
    middle = time.process_time()
    value = read()
    return middle - start, time.process_time() - middle, value


def main() -> None:
    """Print the table of a share of the steps of each loop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0)
    share = parser.parse_args().share
    print("\n| loop | real, s | recorded, s | ratio | a value after it, s |")
    print("| --- | --: | --: | --: | --: |")
    for name, loop in LOOPS.items():
        real, real_value, wanted = measure(loop, share)
        with mm.record():
            recorded, value, met = measure(loop, share)
        ratio = recorded / (real + real_value)
        is_same = "" if met == wanted else " (another)"
        print(
            f"| {name} | {real:.2f} | {recorded:.2f} | {ratio:.1f} "
            f"| {value:.2f}{is_same} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
