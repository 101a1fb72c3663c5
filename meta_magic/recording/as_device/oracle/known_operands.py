"""The CPU is asked about a call of which some operands are known, with their values."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # public

from meta_magic.recording.as_device.oracle.child import (
    NO_ANSWER,
    can_fork,
    run_in_child,
)
from meta_magic.recording.as_device.oracle.oracle import Answer, Verdict, is_plain
from meta_magic.recording.as_device.oracle.shrinking import is_small
from meta_magic.recording.as_device.oracle.stand_ins import (
    UNRESERVED,
    StandIns,
    Unaskable,
    measure_spans,
    put_on_cpu,
    rebuild,
)
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.signatures.arguments import Args, Kwargs
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction

__all__ = ["ask_of_values"]

LINALG_CHECK: Final = "aten._linalg_check_errors.default"


def ask_of_values(
    func: Callable[..., Any],
    args: Args,
    kwargs: Kwargs,
    real_by_id: Mapping[int, Tensor],
) -> Answer:
    """Return what the CPU raises of a call, given what it reads.

    At its true sizes, in a child process where there can be one: a kernel may trust
    values that are wrong.

    Args:
        func: An operator.
        args: Its positional arguments, tensors on meta.
        kwargs: Its others.
        real_by_id: What some of these tensors hold, by their ``id()``.
    """
    has_child = can_fork() and UNRESERVED is not None
    met = tensors_in(args, kwargs)
    tensors = [tensor for tensor in met if tensor.is_meta or not has_child]
    is_small_or_apart = has_child or is_small([tensor.shape for tensor in tensors])
    if not is_small_or_apart or not all(map(is_plain, tensors)):
        return Verdict.UNKNOWN
    stand_ins = StandIns(measure_spans(tensors), is_untouched=has_child)

    def replace(value: Any) -> Any:
        if id(value) in real_by_id:
            return real_by_id[id(value)]
        is_on_meta = isinstance(value, Tensor) and value.is_meta
        return stand_ins.make(value) if is_on_meta else put_on_cpu(value)

    def run() -> None:
        func(*rebuild(args, replace), **rebuild(kwargs, replace))

    with DisableTorchDispatch(), DisableTorchFunction(), torch.no_grad():
        answer = judge(run_in_child if has_child else run_here, run)
    if str(func) == LINALG_CHECK and isinstance(answer, RuntimeError):
        return as_linalg_error(answer)
    return answer


def as_linalg_error(error: RuntimeError) -> RuntimeError:
    """Return an error as ``torch.linalg`` raises it: torch.ops loses the class."""
    is_of_lu = str(error).startswith("torch.linalg.lu_factor")
    return error if is_of_lu else LinAlgError(str(error))


Run = Callable[[Callable[[], object]], Exception | None]
"""Runs a function; returns what it raised, or None if it ran."""


def judge(run_it: Run, function: Callable[[], object]) -> Answer:
    """Return what a function raises."""
    try:
        raised = run_it(function)
    except (Unaskable, OSError):
        return Verdict.UNKNOWN
    if raised is NO_ANSWER:
        return Verdict.UNKNOWN
    return Verdict.ACCEPTED if raised is None else raised


def run_here(run: Callable[[], object]) -> Exception | None:
    """Run a function in this process."""
    try:
        run()
    except Unaskable:
        raise
    except Exception as error:  # noqa: BLE001  it is the answer
        return error.with_traceback(None)
    return None
