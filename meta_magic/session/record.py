"""``record()``: record a block of code outside of IPython."""

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import FrameType, TracebackType
from typing import Final, cast

from meta_magic.session.operand_names import read_variables
from meta_magic.session.recording import Recording
from meta_magic.session.shown_frames import hide_others
from meta_magic.session.trace_handle import TraceHandle
from meta_magic.trace.options import (
    Options,
    read_assumptions,
    read_device,
    read_meaning,
)
from meta_magic.trace.provenance import LIMITS, ValueLimits
from meta_magic.trace.rerun import Rerun, list_names, make_rerun
from meta_magic.trace.trace import Trace

__all__ = ["read_options", "record"]


class record:  # noqa: N801  a context manager is named as a function
    """Record every tensor operator of a block, and run it on the meta device.

    Args:
        limits: Bytes and floating-point operations that the value of a tensor may take
            when the block asks for it, as ``item()`` does.
        as_device: Whose kernels are recorded, ``cpu``, ``cuda`` or ``cuda:8``, of which
            there are eight: attention as the
            operator that this device would choose, its optimizers, the dtypes of its
            autocast. ``meta`` for torch's own there, whose attention is the math of
            many operators. By default ``cuda`` where torch sees one, else ``cpu``.
        assume: What to take for granted of values beyond ``limits``:
            ``nonzero=all``, ``nonzero=0.5`` or another part, by which a mask is true,
            ``routing=uniform``, by which each expert gets as many tokens,
            ``values=nan`` or another number, which is what is read. One, or several.
        named: What a device means that the block names, as ``device="cuda"`` does:
            ``plan``, all tensors stay on meta, and the trace says where each would lie;
            or ``real``, as torch means it.
        check_values: Whether indices, classes and masks that nobody knows are evaluated
            within ``limits``, to be refused as on the CPU. Those from outside of the
            block, and numbers that it made within known bounds, are checked anyway.
        cache: Answer calls whose signature was seen before without running torch's
            meta kernel. ``False`` runs every kernel, for checking.

    Returns:
        The :class:`Trace`, complete when the block has ended, also by an exception.

    Example:
        >>> with record() as trace:
        ...     y = torch.ones(2, 3) @ torch.ones(3, 4)
        >>> [call.op for call in trace.ops]
        ['aten.ones.default', 'aten.ones.default', 'aten.mm.default']
    """

    def __init__(
        self,
        *,
        cache: bool = True,
        limits: ValueLimits = LIMITS,
        as_device: str | None = None,
        assume: str | Sequence[str] = (),
        named: str = "plan",
        check_values: bool = False,
    ) -> None:
        self._options = read_options(
            cache=cache,
            limits=limits,
            as_device=as_device,
            assume=assume,
            named=named,
            check_values=check_values,
        )
        self._handle = TraceHandle()

    def __enter__(self) -> Trace:
        code = sys._getframe(1).f_code
        namespace = read_variables(sys._getframe(1))
        self._rerun = find_rerun(sys._getframe(1), namespace, self._options)
        self._recording = Recording(
            code.co_filename,
            code,
            self._options,
            entry_points=ENTRY_POINTS,
            namespace=namespace,
        )
        self._recording.guard.enter()
        return cast("Trace", self._handle)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Nothing before this: an interrupt in it would keep the modes entered.
        try:
            self._recording.guard.leave()
        finally:
            if error is not None:
                hide_others(error)
            namespace = read_variables(sys._getframe(1))
            trace = self._recording.finish(error, namespace)
            self._handle.fulfil(replace(trace, rerun=self._rerun))
            del self._recording


def read_options(
    *,
    cache: bool = True,
    limits: ValueLimits = LIMITS,
    as_device: str | None = None,
    assume: str | Sequence[str] = (),
    named: str = "plan",
    check_values: bool = False,
) -> Options:
    """Return what a user chose, as :class:`record` takes it."""
    device, n_devices = read_device(as_device)
    return Options(
        cache=cache,
        limits=limits,
        device=device,
        assumed=read_assumptions(assume),
        named=read_meaning(named),
        n_devices=n_devices,
        check_values=check_values,
    )


def find_rerun(
    frame: FrameType, variables: Mapping[str, object], options: Options
) -> Rerun | None:
    """Return what it takes to record a statement of a frame again, if that can be."""
    code = frame.f_code
    is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
    return make_rerun(
        text=None,
        file=code.co_filename,
        line=frame.f_lineno,
        of_module=frame.f_globals,
        variables=variables,
        names=list_names(code),
        function=code if is_function else None,
        options=options,
    )


ENTRY_POINTS: Final = (record.__enter__, record.__exit__)
