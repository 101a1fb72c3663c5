"""A call made smaller: sizes and their multiples together, as long as meta accepts it.

Meta decides what is consistent: no rule of any operator is needed. What the small call
says of the large one is a suspicion, not an answer.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.recording.as_device.oracle.proxy_tensors import (
    Filling,
    put_on_cpu,
    rebuild,
)
from meta_magic.recording.identities.nested_tensors import tensors_in

KEPT: Final = 8
"""Sizes up to this one stay as they are."""

CHECKING: Final = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "linear"}
    | {"convolution", "constant_pad_nd", "cat", "stack", "copy", "masked_fill"}
    | {"native_layer_norm", "native_group_norm", "native_batch_norm", "embedding"}
    | {"sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin"}
    | {"any", "all", "var", "std", "linalg_vector_norm", "norm", "logsumexp"}
    | {"softmax", "log_softmax", "cumsum", "sort", "topk", "tril", "triu", "mse_loss"}
    | {"gather", "scatter", "scatter_add", "index_select", "index", "index_put"}
    | {"index_add", "nll_loss_forward", "nll_loss2d_forward", "binary_cross_entropy"}
    | {"smooth_l1_loss", "max_pool2d_with_indices", "avg_pool2d"}
    | {"embedding_bag", "embedding_bag_forward_only"}
    | {"uniform", "normal", "bernoulli", "random", "exponential", "geometric"}
    | {"cauchy", "log_normal", "rand_like", "randn_like", "randint_like", "full_like"}
    | {"new_full"}
)
"""Operators that check all sizes that they are given before they touch memory. Others
might end the process when they are given some that do not belong together."""

SMALLER: Final = (2, 3, 4, 5, 6, 7)
"""What a size may become, with its multiples in proportion."""

MAX_NUMEL: Final = 2**17
"""Elements of all tensors of a call that is asked as it is."""

MAX_WORK: Final = 2**25
"""Elements times the largest size: a bound on what such a call computes."""

N_TRIALS: Final = 40
"""How often meta is asked for smaller sizes."""

Call = tuple[Any, Any]


def is_small(shapes: Sequence[Sequence[int]], share: int = 1) -> bool:
    """Whether a call of tensors of these shapes takes little; or a share of that."""
    numel = sum(map(math.prod, shapes))
    longest = max((n for shape in shapes for n in shape), default=1)
    return numel <= MAX_NUMEL // share and numel * longest <= MAX_WORK // share


def take_one(value: Any) -> Any:
    """Return the arguments of a factory with all sizes in lists being one."""
    if isinstance(value, dict):
        return {name: take_one(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        is_of_sizes = all(type(item) is int for item in value)
        return type(value)(1 if is_of_sizes else take_one(item) for item in value)
    return value


def base_name(operator: Any) -> str:
    """Return the name of an operator without its overload, and underscores."""
    name: str = operator.name().removeprefix("aten::")
    return name.partition(".")[0].strip("_")


def shrink(func: Any, call: Call, tensors: Sequence[Tensor]) -> "Smaller | None":
    """Return a smaller call, that the CPU can be asked about.

    Args:
        func: The operator.
        call: Its arguments, positional and by name, on meta.
        tensors: Those among them.

    Returns:
        It; None if meta accepts none that is small enough, or if that might end the
        process.
    """
    is_elementwise = torch.Tag.pointwise in func.tags
    if not is_elementwise and base_name(func) not in CHECKING:
        return None
    smaller = Smaller(call, tensors)
    smaller.propose()
    if smaller.fits() and (is_elementwise or smaller.is_accepted(func)):
        return smaller
    smaller.forget()
    n_trials, is_accepted = 0, False
    for size in smaller.list_sizes() * 2:
        if smaller.fits():
            break
        for target in SMALLER if smaller.read(size) > KEPT else ():
            n_trials += 1
            if n_trials > N_TRIALS:
                return None
            if smaller.try_size(func, size, target):
                is_accepted = True
                break
    return smaller if smaller.fits() and is_accepted else None


class Smaller:
    """Which size stands for which, in the shapes and the numbers of a call."""

    def __init__(self, call: Call, tensors: Sequence[Tensor]) -> None:
        self._call = call
        self._tensors = tensors
        self._numbers: set[int] = set()
        rebuild(call, self._note_number)
        self._all = {n for t in tensors for n in t.shape} | self._numbers
        self._now: dict[int, int] = {}

    def _note_number(self, value: Any) -> None:
        if type(value) is int and abs(value) > KEPT:
            self._numbers.add(abs(value))

    def list_sizes(self) -> list[int]:
        """Return the sizes that may become smaller, the largest first."""
        found = {n for t in self._tensors for n in t.shape if n > KEPT}
        return sorted(found, reverse=True)

    def read(self, size: int) -> int:
        """Return what stands for a size."""
        return self._now.get(size, size)

    def fits(self) -> bool:
        """Whether the call is small by now."""
        shapes = [[*map(self.read, t.shape)] for t in self._tensors]
        return is_small(shapes, share=8)

    def forget(self) -> None:
        """Have all sizes be as they were."""
        self._now.clear()

    def propose(self) -> None:
        """Make all sizes smaller at once, the smallest first, none like another."""
        for size in reversed(self.list_sizes()):
            if self.read(size) > KEPT:
                any(self._scale(size, target) for target in SMALLER)

    def try_size(self, func: Callable[..., Any], size: int, target: int) -> bool:
        """Make a size and its multiples smaller, if meta accepts that."""
        before = dict(self._now)
        if self._scale(size, target) and self.is_accepted(func):
            return True
        self._now = before
        return False

    def is_accepted(self, func: Callable[..., Any]) -> bool:
        """Whether meta accepts the call as it is by now, and makes no more of it."""
        args, kwargs = self.build("meta")
        try:
            made = func(*args, **kwargs)
        except Exception:  # noqa: BLE001  whatever it is: not these sizes
            return False
        return is_small([tensor.shape for tensor in tensors_in(made)])

    def _scale(self, size: int, target: int) -> bool:
        """Make a size and its multiples smaller, unless two would be alike."""
        before = dict(self._now)
        for value in self._all:
            if value % size == 0 and self.read(value) * target % size == 0:
                self._now[value] = self.read(value) * target // size
        if len(set(map(self.read, self._all))) == len(self._all):
            return True
        self._now = before
        return False

    def build(self, device: str, fill: Filling | None = None) -> Call:
        """Return the arguments as they are by now, on a device; zeros by default."""
        made: dict[int, Tensor] = {}
        is_on_meta = device == "meta"

        def replace(value: Any) -> Any:
            if isinstance(value, Tensor):
                if id(value) not in made:
                    made[id(value)] = self._make(value, device, fill)
                return made[id(value)]
            if type(value) is int and abs(value) > KEPT:
                return self.read(value) if value > 0 else -self.read(-value)
            return value if is_on_meta else put_on_cpu(value)

        return rebuild(self._call[0], replace), rebuild(self._call[1], replace)

    def _make(self, tensor: Tensor, device: str, fill: Filling | None) -> Tensor:
        """Return numbers laid out in the order of a tensor, without gaps."""
        shape = [*map(self.read, tensor.shape)]
        steps, step = [0] * tensor.ndim, 1
        for i in sorted(range(tensor.ndim), key=lambda i: (tensor.stride(i), -i)):
            if tensor.stride(i) or tensor.shape[i] <= 1:
                steps[i] = step
                step *= max(shape[i], 1)
        flat = torch.zeros(step, dtype=tensor.dtype, device=device)
        if fill is not None:
            fill(flat)
        made = flat.as_strided(shape, steps)
        return made.conj() if tensor.is_conj() else made
