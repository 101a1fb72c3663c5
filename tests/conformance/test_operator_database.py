"""Operators of torch's database do under ``record()`` what they do on meta.

Every second one is called in one of the ways that it can be called in; ``-m sweep``
runs all samples of all operators in all ways.

Importing the database calls ``torch.backends.disable_global_flags()`` for the process.
"""

import warnings
from collections.abc import Iterator
from itertools import compress
from typing import Any

import pytest
import torch

from meta_magic.recording.as_device.adjustments import CORRECTIONS
from meta_magic.session.record import record
from meta_magic.trace.trace import Trace
from tests.unit.eager import Names

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tests.conformance.operator_samples import (
        OPERATORS,
        Call,
        calls_of,
        full_name,
        observe,
    )

pytestmark = pytest.mark.filterwarnings("ignore")

VARIANTS = ("plain", "in_place", "out", "backward")
N_SAMPLES = {"plain": 2, "in_place": 1, "out": 1, "backward": 1}


def list_variants(op: Any) -> list[str]:
    """Return the ways in which an operator of the database can be called."""
    has_gradients = op.supports_autograd and torch.float32 in op.dtypes
    is_offered = (True, op.inplace_variant is not None, op.supports_out, has_gradients)
    return [*compress(VARIANTS, is_offered)]


def choose_variants() -> Iterator[tuple[Any, str]]:
    """Yield operators, each with a way to call it in which its neighbours are not."""
    for number, op in enumerate(OPERATORS[::2]):
        variants = list_variants(op)
        yield op, variants[number % len(variants)]


SAMPLED = [*choose_variants()]


def record_twice(call: Call, *, cache: bool) -> tuple[list[Any], Trace]:
    """Return what the first and the second run of a call left, and their trace."""
    with record(cache=cache, as_device="meta", named="real") as trace:
        observed = [observe(call), observe(call)]
    return observed, trace


def differing_fields(served: Trace, bare: Trace) -> list[str]:
    """Return, in words, in what the first operator that differs does so."""
    for a, b in zip(served.ops, bare.ops, strict=False):
        if repr(a) != repr(b):  # by their text: nan as an argument equals no other
            return [
                f"{b.op} {name}: {getattr(a, name)} is not {getattr(b, name)}"
                for name in a.__dataclass_fields__
                if repr(getattr(a, name)) != repr(getattr(b, name))
            ]
    if len(served.ops) != len(bare.ops):
        return [f"{len(served.ops)} operators served, {len(bare.ops)} run"]
    return []


def differences(met: Any, wanted: Any) -> list[str]:
    """Return, in words, what differs between two results of ``observe``."""
    if type(met) is not list or type(wanted) is not list or len(met) != len(wanted):
        return [f"{met} is not {wanted}"]
    found = []
    for a, b in zip(met, wanted, strict=True):
        if (
            a != b
            and isinstance(a, dict)
            and isinstance(b, dict)
            and a.keys() == b.keys()
        ):
            found += [f"{k}: {a[k]} is not {b[k]}" for k in a if a[k] != b[k]]
        elif a != b:
            found.append(f"{a} is not {b}")
    return found


def knows_better(met: Any, trace: Trace) -> bool:
    """Whether a recording goes on where torch on meta refuses, and says so.

    The values are those of uninitialized memory here: only that it answers is compared,
    or that the CPU's kernel refuses them.
    """
    is_corrected = not CORRECTIONS.keys().isdisjoint(op.op for op in trace.ops)
    has_refused = met in ("MissingValueError", "RuntimeError")
    return has_refused or bool(trace.program.evaluations) or is_corrected


def find_mismatches(call: Call) -> list[str]:
    """Return, in words, where ``record()`` and plain meta disagree on one call.

    Plain meta under a dispatch mode that does nothing: any mode changes whether
    ``matrix_rank`` returns its ``out``, and the version of gradients that are zero.
    """
    with torch.device("meta"), Names():
        plain = observe(call)
    observed, served = record_twice(call, cache=True)
    observed_bare, bare = record_twice(call, cache=False)
    runs = {
        "first run": observed[0],
        "second run": observed[1],
        "uncached first run": observed_bare[0],
        "uncached second run": observed_bare[1],
    }
    has_failed = isinstance(plain, str)
    found = [
        f"{run}: {' and '.join(differences(it, plain))}"
        for run, it in runs.items()
        if it != plain
        and not (has_failed and knows_better(it, bare if "un" in run else served))
    ]
    if served.program.evaluations or bare.program.evaluations:
        return found
    return found + differing_fields(served, bare)


def find_all_mismatches(op: Any, limit: int | None, variant: str) -> list[str]:
    """Return the mismatches of the samples of one operator, with their number."""
    return [
        f"sample {index}: {mismatch}"
        for index, call in enumerate(calls_of(op, limit, variant))
        for mismatch in find_mismatches(call)
    ]


@pytest.mark.parametrize(
    ("op", "variant"), SAMPLED, ids=[f"{op.full_name}-{name}" for op, name in SAMPLED]
)
def test_an_operator_does_under_record_what_it_does_on_meta(op, variant):
    assert find_all_mismatches(op, N_SAMPLES[variant], variant) == []


@pytest.mark.sweep
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("op", OPERATORS, ids=full_name)
def test_an_operator_does_so_on_every_sample(op, variant):
    assert find_all_mismatches(op, None, variant) == []
