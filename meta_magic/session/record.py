"""The functions for users beside ``%%meta``: ``record``, ``real`` and ``meta_like``.

``with record() as trace:`` records a block of any code. ``trace`` is a ``TraceHandle``
until the block ends; it then answers as the ``Trace``.
"""

import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, cast

import torch
from torch import Tensor
from torch.nn import Parameter

from meta_magic.errors import UnfinishedTraceError
from meta_magic.recording.identities.call_sites import read_variables
from meta_magic.session.raised_calls import hide_others
from meta_magic.session.recording import Recording
from meta_magic.torch_private.tensor_internals import MetaConverter
from meta_magic.trace.options import (
    LIMITS,
    Options,
    ValueLimits,
    list_names,
    make_rerun,
    read_assumptions,
    read_check,
    read_device,
    read_dims,
    read_meaning,
    read_sliders,
)
from meta_magic.trace.trace import Trace
from meta_magic.trace.world import read_world


class record:  # noqa: N801  a context manager is named as a function
    """Record every tensor operator of a block, and run it on the meta device.

    Args:
        limits: Bytes and floating-point operations that the value of a tensor may take
            when the block asks for it, as ``item()`` does.
        as_device: The device whose kernels are recorded: ``cpu``, ``cuda``, or
            ``cuda:8`` for eight of them. It decides the operator of attention, the
            optimizers and the dtypes of autocast. ``meta`` records torch's own kernels
            there, whose attention is many operators. Tensors that the code puts on
            a GPU have the kernels of CUDA in any case.
        assume: What to assume of values beyond ``limits``, one option or several:
            ``nonzero=all`` or ``nonzero=0.5`` of a mask's elements are true,
            ``routing=uniform`` gives each expert as many tokens,
            ``values=nan`` or another number is what is read.
        named: What a named device, such as ``device="cuda"``, means: ``plan`` keeps all
            tensors on meta, and the trace says where each would be; ``real`` is torch's
            own meaning.
        check_values: Whether to compute unknown indices, classes and masks within
            ``limits``, so that wrong ones are refused as on the CPU. Those from outside
            of the block, and numbers that it made within known bounds, are checked
            anyway.
        check: Whether ``trace.notes`` has likely mistakes of programs that run, too,
            such as a softmax over the batch, and sizes at which the block fails. A line
            with ``# meta: ok`` has none. ``"batch=B"`` also notes the first call that
            mixes the samples of a batch of size ``B``.
        cache: Whether a call whose signature was seen before skips torch's meta kernel.
            ``False`` runs every kernel, for checking.
        world: Number of processes of the world of which the block is recorded as one;
            the others need not exist: ``init_process_group``, meshes, DDP, FSDP and
            DTensor find them. Results are in ``trace.world`` and ``trace.sent``. A
            number that it reads, such as a loss, is NaN beyond ``limits``, with a note.
        rank: The process to record, from 0.
        per_node: Processes of one machine; 8 by default, or all if fewer.
        dims: Names by which sizes are shown, as ``"B,T,D"``: variables, arguments such
            as ``n_embd=64``, fields of dataclasses, ``B=8`` for the one 8 in the code,
            or ``auto``. See ``trace.dims``.
        params: By name of a number in the code, the values of its slider in the report:
            ``{"d_model": range(256, 4097, 256)}``.

    Returns:
        The :class:`Trace`, complete when the block has ended, also by an exception.

    Example:
        >>> with record() as trace:
        ...     y = torch.ones(2, 3) @ torch.ones(3, 4)
        >>> [call.op for call in trace.ops]
        ['aten.ones.default', 'aten.ones.default', 'aten.mm.default']
    """

    def __init__(  # noqa: PLR0913  each is an option of its own
        self,
        *,
        cache: bool = True,
        limits: ValueLimits = LIMITS,
        as_device: str | None = None,
        assume: str | Sequence[str] = (),
        named: str = "plan",
        check_values: bool = False,
        check: bool | str = False,
        world: int | None = None,
        rank: int | None = None,
        per_node: int | None = None,
        dims: str | Sequence[str] = (),
        params: Mapping[str, Iterable[int]] | Iterable[str] = (),
    ) -> None:
        planned_world = read_world(world, rank, per_node)
        in_world = planned_world is not None
        device, n_devices = read_device(as_device, in_world=in_world)
        is_checked, batch = read_check(check)
        self.options = Options(
            cache=cache,
            limits=limits,
            device=device,
            assumed=read_assumptions(assume),
            named=read_meaning(named),
            n_devices=n_devices,
            check_values=check_values,
            is_checked=is_checked,
            batch=batch,
            world=planned_world,
            dims=read_dims(dims),
            sliders=read_sliders(params),
        )
        self._handle = TraceHandle()

    def __enter__(self) -> Trace:
        frame = sys._getframe(1)
        code, namespace = frame.f_code, read_variables(frame)
        is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
        self._rerun = make_rerun(  # records the running statement again
            text=None,
            file=code.co_filename,
            line=frame.f_lineno,
            of_module=frame.f_globals,
            variables=namespace,
            names=list_names(code),
            function=code if is_function else None,
            options=self.options,
        )
        self._recording = Recording(
            code.co_filename,
            code,
            self.options,
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
        # This comes first: an interrupt before it would leave the modes entered.
        try:
            self._recording.guard.leave()
        finally:
            if error is not None:
                hide_others(error)
            namespace = read_variables(sys._getframe(1))
            trace = self._recording.finish(error, namespace)
            self._handle.fulfil(replace(trace, rerun=self._rerun))
            del self._recording


ENTRY_POINTS: Final = (record.__enter__, record.__exit__)


class TraceHandle:
    """Proxy of the :class:`Trace` of a block, which is known when the block ends.

    ``isinstance``, attributes, equality and pickling go to that trace. Before the end,
    every attribute raises ``UnfinishedTraceError``.
    """

    __slots__ = ("__weakref__", "_made")
    __dataclass_fields__ = Trace.__dataclass_fields__

    def __init__(self) -> None:
        self._made: Trace | None = None

    def fulfil(self, trace: Trace) -> None:
        """Answer as ``trace`` from now on."""
        self._made = trace

    @property  # type: ignore[misc]  # an attribute that can be set, says its stub
    def __class__(self) -> type[Trace]:  # type: ignore[override]  # on purpose
        """``Trace``, for ``isinstance``."""
        return Trace

    def __getattr__(self, name: str) -> Any:
        if self._made is None:
            if name.startswith("_"):
                raise AttributeError(name)
            raise UnfinishedTraceError(
                f"trace.{name} is known when the `with record()` block has ended"
            )
        return getattr(self._made, name)

    def _finished(self) -> Trace:
        if self._made is None:
            raise UnfinishedTraceError(
                "the trace is known when the `with record()` block has ended"
            )
        return self._made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        return id(self) == id(other) or self._finished() == other

    def __hash__(self) -> int:
        return hash(self._finished())

    def __len__(self) -> int:
        return len(self._finished())

    def __str__(self) -> str:
        return str(self._finished())

    def __repr__(self) -> str:
        return "<Trace: recording>" if self._made is None else repr(self._made)

    @property
    def _repr_html_(self) -> Any:
        # On the class: marimo does not read attributes of the object.
        return self.__getattr__("_repr_html_")

    def __dir__(self) -> list[str]:
        return dir(Trace)

    def __reduce__(self) -> tuple[object, ...]:
        return _get_trace, (self._finished(),)  # pickled and copied as the trace


def _get_trace(trace: Trace) -> Trace:
    return trace


def real() -> torch.device:
    """Return a context manager in which a cell's new tensors are real.

    In it, factories make real tensors on the CPU, and ``x.cpu()`` gives the values of
    ``x``. It is ``torch.device("cpu")``, which does the same as a context; elsewhere in
    a cell, a named device is only planned.

    Example:
        >>> with record():
        ...     with real():
        ...         weights = torch.tensor([0.1, 0.9])
        >>> weights.device
        device(type='cpu')
    """
    return torch.device("cpu")


def meta_like(tensor: Tensor) -> Tensor:
    """Return a tensor on meta that equals a real one in all but its data.

    Shape, strides, offset, dtype, ``requires_grad`` and subclass are kept; a view has a
    base of the same size.

    Args:
        tensor: Any tensor, also one on meta.

    Raises:
        TypeError: It is not a tensor, or of a kind that meta does not have.

    Source: ``torch._subclasses.meta_utils.MetaConverter``, as FakeTensorMode uses it.

    Example:
        >>> weight = torch.ones(2, 3)
        >>> with record() as trace:
        ...     y = meta_like(weight) @ torch.ones(3, 4)
        >>> trace.ops[-1].outputs[0].shape
        (2, 4)
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"meta_like() takes a tensor, not a {type(tensor).__name__}")
    made: Any = MetaConverter()(tensor)
    if made is NotImplemented:
        name, layout = type(tensor).__name__, tensor.layout
        raise TypeError(f"meta has no {name} of layout {layout}")
    like: Tensor = made
    if isinstance(tensor, Parameter):
        return Parameter(like.detach(), requires_grad=tensor.requires_grad)
    return like
