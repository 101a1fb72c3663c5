"""Borrow real modules that a cell calls with meta tensors: on meta until the cell ends.

A leaf that wants a gradient cannot be a captured constant, as autograd compares the
device of a gradient with that of its leaf. So the implementation of the leaf is swapped
with a twin on meta whose values are known, and swapped back when the cell ends. The
Python object stays, as modules and optimizers hold it; what is no tensor, such as
``training``, stays as the cell set it.

Read ``BorrowedModules.borrow_called`` first.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from meta_magic.recording.identities.device_plan import (
    carry_placement,
    find_default,
    find_placement,
)
from meta_magic.recording.identities.tensors import (
    rebuild,
    tensors_in,
    tensors_of,
)
from meta_magic.recording.intercept.real_tensors.capturable import (
    find_on_meta,
    is_capturable,
    is_real,
    wants_gradient,
)
from meta_magic.recording.intercept.real_tensors.captured_constants import (
    ConstantCapture,
)
from meta_magic.recording.rows.writers import RecordingReplacements, Writers
from meta_magic.torch_private.interrupts import uninterrupted
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.torch_private.module_internals import (
    buffers_of,
    parameters_of,
    walk_modules,
)
from meta_magic.torch_private.replacing import APPLY_OF_MODULES, FIRST_SIZES
from meta_magic.torch_private.tensor_internals import (
    read_hooks,
    set_hooks,
    swap_tensor_impl,
)
from meta_magic.trace.signature import META

MISSING: Final = object()


class BorrowedTensor:
    """A real tensor and its twin on meta."""

    def __init__(self, real: Tensor, twin: Tensor) -> None:
        self.pair = real, twin

    def exchange(self) -> None:
        """Swap their implementations."""
        # The cache has weak references to parameters, with which torch refuses to swap.
        torch.clear_autocast_cache()
        swap_tensor_impl(*self.pair)


class BorrowedEntry:
    """An entry of a dictionary: the state of an optimizer, or a tensor of a module."""

    def __init__(self, holder: dict[Any, Any], key: object, value: object) -> None:
        self._holder = holder
        self._key = key
        self._value = value

    def exchange(self) -> None:
        """Swap the entry with the value that is kept here."""
        now = self._holder.get(self._key, MISSING)
        if self._value is not MISSING:
            self._holder[self._key] = self._value
        elif now is not MISSING:
            del self._holder[self._key]
        self._value = now

    @property
    def pair(self) -> tuple[object, object]:
        """The value in the dictionary, and the value that is kept here."""
        return self._holder.get(self._key), self._value


Borrowed: TypeAlias = BorrowedTensor | BorrowedEntry
"""Something real that is replaced while a cell runs; ``pair`` has it, and the other."""


class BorrowedModules(RecordingReplacements):
    """Context manager within which real modules that a cell calls are on meta."""

    def __init__(self, write: Writers, capture: ConstantCapture) -> None:
        super().__init__(write)
        self._capture = capture
        self._borrowed: list[Borrowed] = []
        self._tensor_by_id: dict[int, Tensor] = {}
        self._optimizer_by_state: dict[tuple[int, int], Any] = {}
        self._handle: Any = None
        self._thread = 0
        capture.borrow = self.borrow

    @uninterrupted
    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        tree = partial(self._borrow_before, self._borrow_tree)
        self.replace_here(nn.Module, {APPLY_OF_MODULES[1]: tree, "zero_grad": tree})
        lazy = partial(self._borrow_before, self._move_lazy)
        self.replace_here(FIRST_SIZES[0], {FIRST_SIZES[1]: lazy})
        step = partial(self._borrow_before, self._borrow_parameters)
        self.replace_here(Optimizer, {"zero_grad": step})
        held = vars(Function)["apply"]  # written in C or in Python, by version of torch

        def apply(kind: type, *args: Any, **kwargs: Any) -> Any:
            return held.__get__(None, kind)(*args, **kwargs)

        self.replace(Function, "apply", classmethod(self._wrap_apply(apply)))
        self._handle = register_optimizer_step_pre_hook(self._borrow_optimizer)
        self.exchange()

    @uninterrupted
    def __exit__(self, *_: object) -> None:
        self._handle.remove()
        self.restore()
        self.give_back()

    @uninterrupted
    def exchange(self) -> None:
        """Swap each borrowed tensor with its twin: the first time, all go on meta."""
        for borrowed in self._borrowed:
            borrowed.exchange()

    @uninterrupted
    def give_back(self) -> None:
        """Make everything that is borrowed real again."""
        failed: RuntimeError | None = None
        for borrowed in reversed(self._borrowed):
            try:  # one that fails must not keep the others on meta
                borrowed.exchange()
            except RuntimeError as error:
                failed = error
        with DisableTorchFunction():
            for borrowed in self._borrowed:
                match borrowed.pair:
                    case Tensor(is_meta=False) as real, Tensor(is_meta=True) as planned:
                        carry_placement(real, self._plan.placement_of(planned))
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Drop all references."""
        self._borrowed.clear()
        self._tensor_by_id.clear()
        self._optimizer_by_state.clear()

    @property
    def has_borrowed(self) -> bool:
        """Whether anything is borrowed."""
        return bool(self._borrowed)

    def borrow(self, real: Tensor) -> None:
        """Put a real leaf on meta until the cell ends."""
        if is_capturable(real):
            self._borrow(real, self._capture.names.add(real))

    @uninterrupted
    def _borrow(self, real: Tensor, name: str | None = None) -> None:
        with DisableTorchFunction():
            can_borrow = is_capturable(real) and real.is_leaf
            if id(real) in self._tensor_by_id or not can_borrow:
                return
            borrowed = BorrowedTensor(real, self._make_twin(real, name))
            borrowed.exchange()
            self._borrowed.append(borrowed)
            self._tensor_by_id[id(real)] = real

    @uninterrupted
    def move_for_good(self, real: Tensor, placement: torch.device) -> None:
        """Put a real leaf on meta, and leave it there after the cell."""
        with DisableTorchFunction():
            if is_capturable(real) and real.is_leaf:
                swap_tensor_impl(real, self._make_twin(real, None, is_noted=False))
                self._plan.set_placements([real], placement)
                self._capture.registry.note_writes_before(real)

    def _make_twin(
        self, real: Tensor, name: str | None, *, is_noted: bool = True
    ) -> Tensor:
        """Return a leaf on meta with the values, hooks and gradient of a real leaf."""
        capture = self._capture.capture
        twin = capture(real, is_borrowed=True, name=name, is_noted=is_noted)
        twin.requires_grad_(real.requires_grad)
        set_hooks(twin, read_hooks(real))
        if real.grad is not None and is_capturable(real.grad):
            twin.grad = capture(real.grad, is_borrowed=True, is_noted=is_noted)
        return twin

    def borrow_called(
        self, module: nn.Module, args: tuple[object, ...]
    ) -> Sequence[nn.Module]:
        """Borrow a real module that the cell calls with meta tensors, or could train.

        Training must not change a real one. Return modules that need no such check at
        later calls.
        """
        with DisableTorchFunction():
            below = find_on_meta(module)
            if below is not None:
                return below
            has_real = is_real(module) or any(map(is_real_lazy, tensors_of(module)))
            if has_real:
                held = list(tensors_of(module))
                is_due = any(wants_gradient(t) or is_lazy(t) for t in held)
                is_due = is_due or any(t.is_meta for t in tensors_in(args))
                if not is_due or not self._borrow_if_due(self._borrow_tree, module):
                    return []
            return [module]

    def _borrow_tree(self, root: nn.Module) -> None:
        """Borrow the parameters and buffers of a module and of all modules below it.

        If the first call decides the shape of one (``nn.LazyLinear``), all are on meta
        for good, as those of a module that the cell made.
        """
        if any(map(is_real_lazy, tensors_of(root))):
            self._move_tree(root)
            return
        if not any(map(self._capture.is_from_outside, tensors_of(root))):
            return
        name = self._capture.names.add(root)
        for fqn, module in walk_modules(root):
            path = ".".join(filter(None, (name, fqn)))
            self._borrow_held(parameters_of(module), path)
            self._borrow_held(buffers_of(module), path)

    @uninterrupted
    def _move_tree(self, root: nn.Module) -> None:
        """Put all tensors of a module on meta for good, also those borrowed before."""
        self._capture.names.note_moved(root)
        held = list(tensors_of(root))
        for tensor in held:
            self._move_lazy(tensor)
            if self._capture.is_from_outside(tensor):
                device = find_placement(tensor)
                self.move_for_good(tensor, META if device.type == "cpu" else device)
        numbers = set(map(id, held))
        self._borrowed = [b for b in self._borrowed if id(b.pair[0]) not in numbers]
        for number in numbers:
            self._tensor_by_id.pop(number, None)

    def _move_lazy(self, lazy: Tensor) -> None:
        """Put a tensor on meta whose shape the first call decides, for good."""
        if not is_real_lazy(lazy):
            return
        make: Any = type(lazy)
        with DisableTorchDispatch():
            twin = make(lazy.requires_grad, device=META, dtype=lazy.dtype)
        swap_tensor_impl(lazy, twin)

    def _borrow_held(self, holder: dict[str, Tensor | None], path: str) -> None:
        for name, tensor in list(holder.items()):
            if tensor is not None and self._capture.is_from_outside(tensor):
                self._borrow(tensor, f"{path}.{name}" if path else name)
                if id(tensor) in self._tensor_by_id:
                    self._borrowed.append(BorrowedEntry(holder, name, tensor))

    def _borrow_parameters(self, optimizer: Any) -> None:
        for parameter in parameters_in(optimizer):
            if self._capture.is_from_outside(parameter):
                self.borrow(parameter)

    def _borrow_optimizer(self, optimizer: Any, *_: object) -> None:
        self._borrow_if_due(self._borrow_parameters, optimizer)
        with DisableTorchFunction():
            for parameter in parameters_in(optimizer):
                key = id(optimizer), id(parameter)
                is_new = key not in self._optimizer_by_state
                if id(parameter) in self._tensor_by_id and is_new:
                    self._optimizer_by_state[key] = optimizer
                    self._borrow_entry(optimizer.state, parameter)

    def _borrow_before(
        self,
        borrow: Callable[[Any], None],
        plain: Callable[..., Any],
        this: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        self._borrow_if_due(borrow, this)
        return plain(this, *args, **kwargs)

    def _wrap_apply(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``Function.apply`` that borrows real leaves beside meta tensors first.

        Autograd sees no operators of a custom function, so no later check would borrow.
        """

        @wraps(apply)
        def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
            self._borrow_if_due(self._borrow_leaves, args)
            return apply(cls, *args, **kwargs)

        return call

    def _borrow_leaves(self, args: tuple[object, ...]) -> None:
        given = tensors_in(args)
        if any(tensor.is_meta for tensor in given):
            for tensor in filter(wants_gradient, given):
                self.borrow(tensor)

    def _borrow_if_due(self, borrow: Callable[[Any], None], holder: Any) -> bool:
        """Borrow, unless real tensors are meant to stay real here."""
        is_here = threading.get_ident() == self._thread
        is_due = is_here and not self._plan.is_real and find_default() != "cpu"
        if is_due:
            with DisableTorchFunction():
                borrow(holder)
        return is_due

    @uninterrupted
    def _borrow_entry(self, state: dict[Any, Any], parameter: Tensor) -> None:
        known = state.get(parameter, MISSING)
        self._borrowed.append(BorrowedEntry(state, parameter, known))
        if known is not MISSING:
            state[parameter] = rebuild(known, self._copy)

    def _copy(self, value: Any) -> Any:
        """Return a copy on meta of a tensor; other values as they are."""
        if not isinstance(value, Tensor):
            return value
        return self._capture.capture(value, is_borrowed=True)


def is_real_lazy(tensor: Tensor) -> bool:
    """Whether the first call decides the shape of a tensor, on a real device so far."""
    return is_lazy(tensor) and not tensor.is_meta


def parameters_in(optimizer: Any) -> Iterator[Tensor]:
    """Yield the parameters of an optimizer."""
    for group in optimizer.param_groups:
        yield from group["params"]
