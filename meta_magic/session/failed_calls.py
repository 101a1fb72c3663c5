"""Describe the call that raised, as the user's own code made it.

As in ``raised_calls``, all is read from the frames that the error's traceback holds:
there the innermost operator, here the function that the user or his library called, or
else the module.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Any

from torch import Tensor, nn

from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.signatures.entries import PLAIN
from meta_magic.session.operand_names import (
    Site,
    list_names,
    make_site,
    name_in_modules,
)
from meta_magic.session.raised_calls import FUNCTION
from meta_magic.session.shown_frames import (
    OURS,
    PYTHONS,
    TORCHS,
    USERS,
    home_of,
    walk_traceback,
)
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.module_internals import CALLING
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.trace.failed_call import FailedCall, Operand
from meta_magic.trace.signature import OpaqueArgument, TensorArgument

__all__ = ["find_failed_call"]


def find_failed_call(
    error: BaseException | None,
    modes: Sequence[object],
    registry: TensorRegistry,
    lending: AbstractContextManager[object],
) -> FailedCall | None:
    """Return the call that an error came from; None without error.

    Args:
        error: What ended the block.
        modes: Those of the recording.
        registry: Knows tensors by number.
        lending: Has real modules as the call saw them.
    """
    if error is None:
        return None
    entries = [*walk_traceback(error.__traceback__)]
    try:
        frame = find_frame(entries, modes)
        with RealTorch(), lending, DisableTorchFunction():
            modules = find_modules(entries)
            return Arguments(registry, find_sites(entries), modules).describe(frame)
    except Exception:  # noqa: BLE001  never in the place of the user's own
        return None


def find_frame(
    entries: Sequence[TracebackType], modes: Sequence[object]
) -> FrameType | None:
    """Return the frame of the function that was called by code that is not torch's.

    Ours, of a call of a function; or else torch's, of the innermost call of a module.
    """
    frames = [entry.tb_frame for entry in entries]
    others = [at for at, f in enumerate(frames) if not is_torchs(f)]
    below = frames[max(others, default=-1) + 1 :]
    for frame in below:
        is_call = frame.f_code is FUNCTION
        if is_call and any(frame.f_locals["self"] is mode for mode in modes):
            return frame
    called = [frame for frame in below if frame.f_code is CALLING]
    return called[-1] if called else None


def is_torchs(frame: FrameType) -> bool:
    """Whether a frame runs torch's code, or what torch or we called."""
    return home_of(frame.f_code.co_filename) in {OURS, TORCHS, PYTHONS}


def find_sites(entries: Sequence[TracebackType]) -> list[Site]:
    """Return the user's own frames of a traceback, and an innermost library's."""
    own = [entry for entry in entries if not is_torchs(entry.tb_frame)]
    last = own[-1:]
    return [
        make_site(entry) for entry in own if is_users(entry.tb_frame) or entry in last
    ]


def find_modules(entries: Sequence[TracebackType]) -> list[nn.Module]:
    """Return the modules that were being called, the innermost first."""
    frames = (entry.tb_frame for entry in reversed(entries))
    return [f.f_locals["self"] for f in frames if f.f_code is CALLING]


class Arguments:
    """Describes what a call was given; owns the tensors met so far.

    Args:
        registry: Knows tensors by number.
        sites: The frames on the way to the call, outermost first.
        modules: The modules on the way, innermost first.
    """

    def __init__(
        self,
        registry: TensorRegistry,
        sites: Sequence[Site],
        modules: Sequence[nn.Module],
    ) -> None:
        self._registry = registry
        self._sites = sites
        self._modules = modules
        self._operands: list[Operand] = []
        self._is_whole = True

    def describe(self, frame: FrameType | None) -> FailedCall:
        """Return the record of the call that a frame answers, or of none."""
        given: Mapping[str, Any] = {} if frame is None else frame.f_locals
        args = tuple(self._freeze(value) for value in given.get("args") or ())
        kwargs = {n: self._freeze(v) for n, v in (given.get("kwargs") or {}).items()}
        return FailedCall(
            function=given.get("func"),
            args=args,
            kwargs=kwargs,
            operands=tuple(self._operands),
            is_whole=self._is_whole,
            frames=tuple(s.position for s in self._sites if is_users(s.frame)),
        )

    def _freeze(self, value: Any) -> Any:
        """Return an argument without tensors, nor what might hold one."""
        if isinstance(value, Tensor):
            self._operands.append(self._describe_operand(value))
            return TensorArgument(len(self._operands) - 1)
        if type(value) in (list, tuple):
            return type(value)(map(self._freeze, value))
        if isinstance(value, tuple):  # a size, a named one
            return tuple(map(self._freeze, value))
        if type(value) is dict:
            return {key: self._freeze(item) for key, item in value.items()}
        is_slice = isinstance(value, slice)
        if type(value) in PLAIN or (is_slice and holds_integers(value)):
            return value
        self._is_whole = False
        return OpaqueArgument(type(value).__name__)

    def _describe_operand(self, tensor: Tensor) -> Operand:
        names = list_names(tensor, self._sites)
        name, *aliases = names or [name_in_modules(tensor, self._modules)]
        number, _, geometry = self._registry.read(tensor)
        return Operand(
            name=name,
            aliases=tuple(aliases),
            tensor=number,
            geometry=geometry.record,
            requires_grad=tensor.requires_grad,
            is_leaf=tensor.is_leaf,
        )


def is_users(frame: FrameType) -> bool:
    """Whether a frame is the user's own."""
    return home_of(frame.f_code.co_filename) == USERS


def holds_integers(value: slice) -> bool:
    """Whether a slice has no tensor for an end."""
    ends = (value.start, value.stop, value.step)
    return all(end is None or type(end) is int for end in ends)
