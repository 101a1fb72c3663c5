"""Find the call of torch that raised the error which ended a block.

Nothing is kept for it while the block runs: what was called, and with what, stands in
the frames of our own modes, which the error's traceback holds. So an error that the
block caught is no concern, and calls that succeed pay nothing.
"""

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, NamedTuple

from meta_magic.recording.identities.frame_kinds import BACKWARD, FORWARD
from meta_magic.recording.identities.function_names import describe_function
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.identities.places import Running
from meta_magic.recording.intercept.dispatch_mode import DispatchMode
from meta_magic.recording.intercept.function_mode import FunctionMode
from meta_magic.recording.signatures.descriptions import Describer
from meta_magic.recording.signatures.entries import OpTable
from meta_magic.session.module_names import read_attributes
from meta_magic.session.program_builder import Written
from meta_magic.session.shown_frames import (
    OURS,
    PYTHONS,
    TORCHS,
    home_of,
    walk_traceback,
)
from meta_magic.torch_private.autograd import DIFFERENTIATING
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.module_internals import CALLING
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.trace.raised_call import RaisedCall
from meta_magic.trace.signature import Signature

__all__ = ["FUNCTION", "find_raised"]

OPERATOR: Final = DispatchMode.__torch_dispatch__.__code__
FUNCTION: Final = FunctionMode.__torch_function__.__code__


class Failed(NamedTuple):
    """A call that raised, as a traceback has it.

    Attributes:
        above: The entries of the traceback down to it, outermost first.
        is_operator: Whether it is an operator's, or a function's.
        func: What was called; of a module its class.
        args: Positional arguments.
        kwargs: Keyword arguments.
        running: The function of torch that ran, if any.
    """

    above: Sequence[TracebackType]
    is_operator: bool
    func: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    running: Running | None


def find_raised(
    error: BaseException | None,
    modes: Sequence[object],
    write: Written,
    lending: AbstractContextManager[object],
) -> RaisedCall | None:
    """Return the call that raised an error, or the cause of it; None if none did.

    Args:
        error: The error.
        modes: Those of the recording: another one may have seen the same call.
        write: What the recording wrote.
        lending: Has real modules as the call saw them.
    """
    met: list[BaseException] = []
    try:
        while error is not None and not any(error is other for other in met):
            failed = find_failed([*walk_traceback(error.__traceback__)], modes)
            if failed is not None and isinstance(error, Exception):
                with RealTorch(), lending:
                    return describe(failed, error, write)
            met.append(error)
            error = error.__cause__
    except Exception as other:  # noqa: BLE001  never in the place of the user's own
        text = f"the call that raised is not in the trace: {other}"
        write.findings.note_at("raised", text, None)
    return None


def find_failed(
    entries: Sequence[TracebackType], modes: Sequence[object]
) -> Failed | None:
    """Return the innermost call of torch in a traceback, of a module if of no function.

    None if code of the user's raised within it, as a hook does within ``backward``.
    """
    running, found = None, None
    for at, entry in enumerate(entries):
        frame = entry.tb_frame
        if frame.f_code not in {OPERATOR, FUNCTION}:
            continue
        given = frame.f_locals
        if not any(given["self"] is mode for mode in modes):
            continue
        is_operator = frame.f_code is OPERATOR
        if not is_operator:  # an attribute's getter has none
            running = given.get("running", [given["func"], None, None, ()])
        call = given["func"], given["args"], given["kwargs"] or {}
        found = Failed(entries[:at], is_operator, *call, running)
    found = found or find_module(entries)
    is_torchs = found is None or found.is_operator or is_of_torch(entries, found)
    return found if is_torchs else None


def find_module(entries: Sequence[TracebackType]) -> Failed | None:
    """Return the innermost call of a module, as of an LSTM that checks its input."""
    for at in reversed(range(len(entries))):
        frame = entries[at].tb_frame
        if frame.f_code is CALLING:
            given = frame.f_locals
            return Failed(
                above=entries[: at + 1],
                is_operator=False,
                func=type(given["self"]),
                args=given["args"],
                kwargs=given["kwargs"],
                running=None,
            )
    return None


def is_of_torch(entries: Sequence[TracebackType], found: Failed) -> bool:
    """Whether all that ran within a call is torch's."""
    below = entries[len(found.above) + 1 :]
    homes = {home_of(entry.tb_frame.f_code.co_filename) for entry in below}
    return homes <= {OURS, TORCHS, PYTHONS}


def describe(failed: Failed, error: BaseException, write: Written) -> RaisedCall:
    """Return the record of a call that raised."""
    if failed.is_operator:
        table = OpTable(failed.func)
        op, names = table.name, table.arguments
    else:
        op, names = str(describe_function(failed.func)), names_of(failed.func)
    with DisableTorchFunction():
        given = tensors_in(failed.args, failed.kwargs)
        seen = [write.registry.read(tensor) for tensor in given]
    place, module_word, module = locate(failed, write)
    text = str(error).strip().partition("\n")[0]
    return RaisedCall(
        signature=Signature(
            op=op,
            arguments=Describer().describe_arguments(names, failed.args, failed.kwargs),
            returns=None,
            inputs=tuple(geometry.record for _, _, geometry in seen),
            outputs=(),
            writes=(),
            views=(),
        ),
        place=place,
        module_word=module_word,
        goes_on=bool(failed.running and failed.running[2]),
        tensors=tuple(number for number, _, _ in seen),
        error=f"{type(error).__name__}: {text}".removesuffix(": "),
        sizes=read_sizes(read_attributes(module)),
    )


def locate(failed: Failed, write: Written) -> tuple[int, int, object]:
    """Return place and module word of a call that raised, and the module if any."""
    kinds = {CALLING: FORWARD, DIFFERENTIATING: BACKWARD}
    inner = (e for e in reversed(failed.above) if e.tb_frame.f_code in kinds)
    within = next(inner, None)
    flags = 0 if within is None else kinds[within.tb_frame.f_code]
    function, _, before, _ = failed.running or (None, None, None, ())
    place, owner, *_ = before or write.places.locate_raised(
        function, failed.above, flags
    )
    if within is None or flags == BACKWARD:
        return place, owner, None
    module = within.tb_frame.f_locals["self"]
    return place, write.calls.extend_last(module) or owner, module


def read_sizes(attributes: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the first size ``in_...`` of a module that has one ``out_...``."""
    for name, taken in attributes.items():
        given = attributes.get(f"out_{name.removeprefix('in_')}")
        if name.startswith("in_") and type(taken) is type(given) is int:
            return taken, given
    return None


def names_of(function: Any) -> tuple[str, ...]:
    """Return the names of a function's arguments, where torch wrote it in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return () if code is None else code.co_varnames[: code.co_argcount]
