"""The values of a small tensor of a finished recording, in numbers and a histogram."""

from math import prod
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.errors import MetaMagicError
from meta_magic.replaying.evaluator import Evaluator
from meta_magic.replaying.value_budget import ValueBudget
from meta_magic.trace.options import LIMITS
from meta_magic.trace.program import HEADER, Program
from meta_magic.trace.units import format_shape
from meta_magic.view.answers import Answers
from meta_magic.view.held import hold

__all__ = ["MAX_NUMEL", "describe_values", "values_of"]

MAX_NUMEL: Final = 100_000
N_BINS: Final = 30
N_FIRST: Final = 10


def values_of(program: Program) -> Answers[Program]:
    """Return what answers which values the tensor at ``slot`` of ``op`` has.

    Args:
        program: The recording. One that keeps a tensor of the user's is held weakly.
    """
    return Answers(
        "values",
        hold(program, program),
        lambda program, asked: describe_values(program, asked["op"], asked["slot"]),
    )


def describe_values(program: Program, op: int, slot: int) -> dict[str, Any]:
    """Return what a tensor holds when the cell ends, as the details panel shows it.

    Args:
        program: The recording.
        op: An operator that reads or returns the tensor.
        slot: Its number among all tensors of that operator, those read first.

    Returns:
        ``facts``, ``first`` and ``bins``; or ``error``, in words.
    """
    met = program.with_raised
    row = memoryview(met.words).cast("I")[met.offsets[op] :]
    signature = met.signatures[row[0]]
    geometry = (*signature.inputs, *signature.outputs)[slot]
    storage = memoryview(met.storage_by_tensor).cast("I")[row[HEADER + slot]]
    if geometry.layout is not torch.strided:
        return {"error": f"its layout is {geometry.layout}"}
    if prod(geometry.shape) > MAX_NUMEL:
        shape = format_shape(geometry.shape)
        return {"error": f"{shape} has more than {MAX_NUMEL:,} elements"}
    wanted = [(storage, geometry)]
    try:
        found, _ = Evaluator(is_apart=True).evaluate(
            program, wanted, ValueBudget(LIMITS), can_assume=False
        )
    except MetaMagicError as error:
        return {"error": str(error)}
    return describe_tensor(found[0])


def describe_tensor(tensor: Tensor) -> dict[str, Any]:
    """Return the numbers of a real tensor; of complex ones the absolute values."""
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    first = ", ".join(format_number(value) for value in flat[:N_FIRST].tolist())
    more = ", …" if flat.numel() > N_FIRST else ""
    numbers = (flat.abs() if flat.is_complex() else flat).double()
    finite = numbers[numbers.isfinite()]
    facts = [("of", "absolute values")] if flat.is_complex() else []
    bins = {}
    if finite.numel():
        is_whole = not (flat.is_floating_point() or flat.is_complex())
        # To the digit: whole numbers are often positions.
        known = [*map(int, flat.tolist())] if is_whole else finite.tolist()
        low, high = format_number(min(known)), format_number(max(known))
        facts += [
            ("min", low),
            ("max", high),
            ("mean", format_number(finite.mean().item())),
            ("std", format_number(finite.std(correction=0).item())),
            ("zeros", f"{(finite == 0).double().mean().item():.1%}"),
        ]
        bins = {"counts": count_bins(finite), "low": low, "high": high}
    facts += [
        (name, f"{count:,}")
        for name, found in (("nan", numbers.isnan()), ("inf", numbers.isinf()))
        if (count := int(found.sum()))
    ]
    told = {"facts": facts, "first": first + more}
    return told | {"bins": bins} if finite.numel() > 1 else told


def count_bins(numbers: Tensor) -> list[int]:
    """Return how many numbers lie in each of ``N_BINS`` stretches of one length."""
    low, high = numbers.min().item(), numbers.max().item()
    return [int(count) for count in torch.histc(numbers, N_BINS, low, high).tolist()]


def format_number(value: complex) -> str:
    """Return a number as short as it can be read."""
    return str(value) if isinstance(value, (bool, int)) else f"{value:.4g}"
