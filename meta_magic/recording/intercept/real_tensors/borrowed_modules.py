"""Real modules that meet meta tensors are lent: on meta until the cell ends.

A leaf that wants a gradient cannot be a constant, as the engine compares the device of
a gradient with its leaf's. So its implementation is exchanged for a twin on meta, whose
values are known: the Python object, which modules and optimizers hold, stays. When the
cell ends it gets back its own. What is no tensor, such as ``training``, stays as the
cell left it.
"""

import threading
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from functools import partial, wraps
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from meta_magic.recording.identities.device_plan import (
    DevicePlan,
    carry_placement,
    is_way_out_open,
)
from meta_magic.recording.identities.nested_tensors import tensors_in, tensors_of
from meta_magic.recording.intercept.real_tensors.capturable import (
    find_on_meta,
    is_real,
    is_wanted,
    wants_gradient,
)
from meta_magic.recording.intercept.real_tensors.captured_constants import Lifting
from meta_magic.torch_private.autograd import read_hooks, set_hooks
from meta_magic.torch_private.interrupts import unbroken
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.module_internals import (
    buffers_of,
    parameters_of,
    walk_modules,
)
from meta_magic.torch_private.replaced import APPLY_OF_MODULES
from meta_magic.torch_private.replacing import Replacements
from meta_magic.torch_private.tensor_internals import swap_tensor_impl

MISSING: Final = object()


class Loan(Protocol):
    """Something real that stands aside while a cell runs."""

    def exchange(self) -> None:
        """Put what is real in its place, or what the cell has there."""

    @property
    def pair(self) -> tuple[object, object]:
        """What is real, and what the cell has in its place, once it stands aside."""


class TensorLoan:
    """A tensor and its twin on meta."""

    def __init__(self, real: Tensor, twin: Tensor) -> None:
        self.pair = real, twin

    def exchange(self) -> None:
        """Exchange their implementations."""
        torch.clear_autocast_cache()  # it holds parameters, weakly: torch refuses then
        swap_tensor_impl(*self.pair)


class EntryLoan:
    """What stood in a dictionary: the state of an optimizer, a module's tensor.

    Args:
        holder: The dictionary.
        key: Where in it.
        value: What stood there; ``MISSING`` if nothing did.
    """

    def __init__(
        self, holder: MutableMapping[Any, Any], key: object, value: object
    ) -> None:
        self._holder = holder
        self._key = key
        self._value = value

    def exchange(self) -> None:
        """Put it back, and keep what stands there now."""
        now = self._holder.get(self._key, MISSING)
        if self._value is not MISSING:
            self._holder[self._key] = self._value
        elif now is not MISSING:
            del self._holder[self._key]
        self._value = now

    @property
    def pair(self) -> tuple[object, object]:
        """What stands there, and what the cell had."""
        return self._holder.get(self._key), self._value


class Lending(Replacements):
    """Context manager within which real modules that a cell calls are on meta.

    Entered again, it lends again.

    Args:
        lifting: Makes what stands for a real tensor.
        plan: Knows what a named device means.
    """

    def __init__(self, lifting: Lifting, plan: DevicePlan) -> None:
        super().__init__()
        self._plan = plan
        self._lifting = lifting
        self._loans: list[Loan] = []
        self._lent: dict[int, Tensor] = {}
        self._states: dict[tuple[int, int], Any] = {}
        self._handle: Any = None
        self._thread = 0
        lifting.lend = self.lend

    @unbroken
    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        tree = partial(self._before, self._lend_tree)
        self.replace_here(nn.Module, {APPLY_OF_MODULES[1]: tree, "zero_grad": tree})
        step = partial(self._before, self._lend_all)
        self.replace_here(Optimizer, {"zero_grad": step})
        held = vars(Function)["apply"]  # written in C, or in Python: as torch has it

        def apply(kind: type, *args: Any, **kwargs: Any) -> Any:
            return held.__get__(None, kind)(*args, **kwargs)

        self.replace(Function, "apply", classmethod(self._before_custom(apply)))
        self._handle = register_optimizer_step_pre_hook(self._lend_state)
        self.exchange()

    @unbroken
    def __exit__(self, *_: object) -> None:
        self._handle.remove()
        self.restore()
        self.give_back()

    @unbroken
    def exchange(self) -> None:
        """Have what is lent be on meta."""
        for loan in self._loans:
            loan.exchange()

    @unbroken
    def give_back(self) -> None:
        """Have what is lent be real."""
        failed: RuntimeError | None = None
        for loan in reversed(self._loans):
            try:  # each on its own: one that fails must not keep the others out
                loan.exchange()
            except RuntimeError as error:
                failed = error
        self._leave_places()
        if failed is not None:
            raise failed

    def _leave_places(self) -> None:
        """Remember where the cell wants what it borrowed."""
        with DisableTorchFunction():
            for loan in self._loans:
                match loan.pair:
                    case Tensor(is_meta=False) as real, Tensor(is_meta=True) as planned:
                        carry_placement(real, self._plan.place_of(planned))

    def close(self) -> None:
        """Let go of everything."""
        self._loans.clear()
        self._lent.clear()
        self._states.clear()

    @property
    def has_lent(self) -> bool:
        """Whether anything was lent."""
        return bool(self._loans)

    def lend(self, real: Tensor) -> None:
        """Have a real leaf be on meta until the cell ends."""
        if is_wanted(real):
            self._lend(real, self._lifting.names.add(real))

    @unbroken
    def _lend(self, real: Tensor, name: str | None = None) -> None:
        with DisableTorchFunction():
            is_lendable = is_wanted(real) and real.is_leaf
            if id(real) in self._lent or not is_lendable:
                return
            loan = TensorLoan(real, self._make_twin(real, name))
            loan.exchange()
            self._loans.append(loan)
            self._lent[id(real)] = real

    @unbroken
    def keep(self, real: Tensor, place: torch.device) -> None:
        """Have a real leaf be on meta for good.

        Args:
            real: That.
            place: Where the code wants it; meta if nowhere by name.
        """
        with DisableTorchFunction():
            if is_wanted(real) and real.is_leaf:
                swap_tensor_impl(real, self._make_twin(real, None, is_noted=False))
                self._plan.name_all([real], place)

    def _make_twin(
        self, real: Tensor, name: str | None, *, is_noted: bool = True
    ) -> Tensor:
        """Return a leaf on meta that is like a real one."""
        lift = self._lifting.lift
        twin = lift(real, is_lent=True, name=name, is_noted=is_noted)
        twin.requires_grad_(real.requires_grad)
        set_hooks(twin, read_hooks(real))
        if real.grad is not None and is_wanted(real.grad):
            twin.grad = lift(real.grad, is_lent=True, is_noted=is_noted)
        return twin

    def meet(self, module: nn.Module, args: tuple[object, ...]) -> Sequence[nn.Module]:
        """Lend a real module that is called, if it meets tensors on meta.

        Or if it could be trained: a real one would be another afterwards.

        Returns:
            Those of which nothing is left to be done at later calls.
        """
        with DisableTorchFunction():
            below = find_on_meta(module)
            if below is not None:
                return below
            is_done = not is_real(module) or self._meet_real(module, args)
            return [module] if is_done else []

    def _meet_real(self, module: nn.Module, args: tuple[object, ...]) -> bool:
        is_met = any(map(wants_gradient, tensors_of(module)))
        is_met = is_met or any(t.is_meta for t in tensors_in(args))
        return is_met and self._ask(self._lend_tree, module)

    def _lend_tree(self, root: nn.Module) -> None:
        """Lend what a module holds, and all below it."""
        if not any(map(self._lifting.is_from_outside, tensors_of(root))):
            return
        name = self._lifting.names.add(root)
        for fqn, module in walk_modules(root):
            path = ".".join(filter(None, (name, fqn)))
            self._lend_held(parameters_of(module), path)
            self._lend_held(buffers_of(module), path)

    def _lend_held(self, holder: dict[str, Tensor | None], path: str) -> None:
        """Lend the parameters or the buffers of a module."""
        for name, tensor in list(holder.items()):
            if tensor is not None and self._lifting.is_from_outside(tensor):
                self._lend(tensor, f"{path}.{name}" if path else name)
                if id(tensor) in self._lent:
                    self._loans.append(EntryLoan(holder, name, tensor))

    def _lend_all(self, optimizer: Any) -> None:
        """Lend what an optimizer steps."""
        for parameter in parameters_in(optimizer):
            if self._lifting.is_from_outside(parameter):
                self.lend(parameter)

    def _lend_state(self, optimizer: Any, *_: object) -> None:
        """Lend what an optimizer steps, and have what it keeps of that be on meta."""
        self._ask(self._lend_all, optimizer)
        with DisableTorchFunction():
            for parameter in parameters_in(optimizer):
                key = id(optimizer), id(parameter)
                if id(parameter) in self._lent and key not in self._states:
                    self._states[key] = optimizer
                    self._lend_entry(optimizer.state, parameter)

    def _before(
        self,
        lend: Callable[[Any], None],
        plain: Callable[..., Any],
        this: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Lend what would be another after a method, and call that."""
        self._ask(lend, this)
        return plain(this, *args, **kwargs)

    def _before_custom(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        """Return what applies a custom function, of which autograd sees no operators.

        It lends the leaves among its arguments if others are on meta.
        """

        @wraps(apply)
        def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
            self._ask(self._lend_leaves, args)
            return apply(cls, *args, **kwargs)

        return call

    def _lend_leaves(self, args: tuple[object, ...]) -> None:
        given = tensors_in(args)
        if any(tensor.is_meta for tensor in given):
            for tensor in filter(wants_gradient, given):
                self.lend(tensor)

    def _ask(self, lend: Callable[[Any], None], holder: Any) -> bool:
        """Lend what something holds, where the cell did not choose the way out."""
        is_here = threading.get_ident() == self._thread
        is_due = is_here and not self._plan.is_real and not is_way_out_open()
        if is_due:
            with DisableTorchFunction():
                lend(holder)
        return is_due

    @unbroken
    def _lend_entry(self, state: MutableMapping[Any, Any], parameter: Tensor) -> None:
        known = state.get(parameter, MISSING)
        self._loans.append(EntryLoan(state, parameter, known))
        if known is not MISSING:
            state[parameter] = self._copy(known)

    def _copy(self, value: Any) -> Any:
        """Return the state of an optimizer with copies on meta of its tensors."""
        if isinstance(value, Tensor):
            return self._lifting.lift(value, is_lent=True)
        if type(value) in (list, tuple):
            return type(value)(map(self._copy, value))
        if type(value) is dict:
            return {name: self._copy(item) for name, item in value.items()}
        return value


def parameters_in(optimizer: Any) -> Iterator[Tensor]:
    """Yield what an optimizer steps."""
    for group in optimizer.param_groups:
        yield from group["params"]
