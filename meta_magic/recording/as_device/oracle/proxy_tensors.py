"""Proxy tensors: real tensors with the metadata and aliases of meta tensors.

The oracle runs a call of the CPU with them. They hold made-up values (``FILLINGS``), or
have memory that is reserved and never touched. Read ``ProxyTensors.make`` first.

A large call is made small enough to run (:func:`shrink`). A size and its multiples
shrink together, and meta decides whether the sizes fit, so no rule of any operator is
needed. If the small call is refused, the large one is asked at its true sizes.
"""

import math
import mmap
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.children import NoAnswer
from meta_magic.recording.identities.storages import span_nbytes
from meta_magic.recording.identities.tensors import rebuild, tensors_in
from meta_magic.torch_private.modes import is_deterministic
from meta_magic.torch_private.tensor_internals import address_of_storage, negate_lazily
from meta_magic.trace.signature import CPU

Filling = Callable[[Tensor], object]
"""Writes made-up values into a flat tensor of zeros."""

WHOLE_NBYTES: Final = 2**19
"""Up to this size a proxy has the whole storage: some operators look at its size."""

UNRESERVED: Final = 0x4000 if sys.platform == "linux" else None
"""MAP_NORESERVE, which older Pythons do not name: untouched memory takes nothing. None
where there is no such flag."""


PLAIN: Final = (int, float, bool, complex, str, type(None), type(Ellipsis))
METADATA: Final = (torch.dtype, torch.device, torch.layout, torch.memory_format)


def write_ramp(flat: Tensor) -> None:
    """Write numbers between 0 and 1; integers are 0 and 1 in turn."""
    if flat.dtype.is_floating_point or flat.dtype.is_complex:
        flat.copy_(torch.linspace(0.1, 0.9, flat.numel(), device=CPU))
    else:
        flat.copy_(torch.arange(flat.numel(), device=CPU) % 2)


FILLINGS: Final[tuple[Filling | None, ...]] = (
    None,
    lambda flat: flat.fill_(1),
    write_ramp,
)


class Unaskable(NoAnswer):
    """Raised for an argument that can have no proxy."""


class ProxyTensors:
    """Makes proxies on the CPU; they share storages as the meta tensors do."""

    def __init__(
        self,
        spans: Mapping[int, int],
        fill: Filling | None = None,
        *,
        is_untouched: bool = False,
        has_gradients: bool = False,
    ) -> None:
        self._has_gradients = has_gradients
        self._spans = spans
        self._fill = fill
        self._is_untouched = is_untouched
        self._bytes: dict[int, Tensor] = {}
        self._made: dict[int, Tensor] = {}

    def make(self, tensor: Tensor) -> Tensor:
        """Return the proxy of a tensor, the same one each time."""
        made = self._made.get(id(tensor))
        if made is None:
            is_outer = torch.is_inference_mode_enabled() and not tensor.is_inference()
            wants_gradient = is_outer and self._has_gradients
            with torch.inference_mode(mode=False) if wants_gradient else nullcontext():
                made = self._made[id(tensor)] = self._build(tensor)
        return made

    def _build(self, tensor: Tensor) -> Tensor:
        if not tensor.is_meta:  # only a child may write a real tensor: it has a copy
            return tensor if self._is_untouched else tensor.clone()
        storage = tensor.untyped_storage()
        address = address_of_storage(storage)
        held = self._bytes.get(address)
        if held is None:
            nbytes = self._spans[address]
            is_whole = self._is_untouched or storage.nbytes() <= WHOLE_NBYTES
            nbytes = max(nbytes, storage.nbytes() if is_whole else 0, 1)
            held = self._bytes[address] = self._allocate(nbytes, tensor.dtype)
        n_items = held.numel() // tensor.element_size()
        flat = held[: n_items * tensor.element_size()].view(tensor.dtype)
        made = flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        if tensor.is_conj():
            made = made.conj()
        if tensor.is_neg():
            made = negate_lazily(made)
        # requires_grad first: a view that was written gets a node when it is asked.
        if self._has_gradients and tensor.requires_grad and tensor.is_leaf:
            made = made.detach().requires_grad_()  # views of it read this of their base
        return made

    def _allocate(self, nbytes: int, dtype: torch.dtype) -> Tensor:
        if self._is_untouched:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (UNRESERVED or 0)
            memory = mmap.mmap(-1, nbytes, flags=flags)
            return torch.asarray(memory, dtype=torch.uint8, device=CPU)
        made = torch.zeros(nbytes, dtype=torch.uint8, device=CPU)
        if self._fill is not None:
            self._fill(made[: nbytes - nbytes % dtype.itemsize].view(dtype))
        return made


def measure_spans(tensors: Sequence[Tensor]) -> Mapping[int, int]:
    """Return the last used byte of each storage, by its address."""
    spans: dict[int, int] = {}
    for tensor in tensors:
        address = address_of_storage(tensor.untyped_storage())
        spans[address] = max(spans.get(address, 0), span_nbytes(tensor))
    return spans


def put_on_cpu(value: Any) -> Any:
    """Return an argument as a call on the CPU takes it."""
    if isinstance(value, torch.device) or (type(value) is str and value == "meta"):
        return CPU
    if isinstance(value, torch.Generator):
        return torch.Generator()
    if isinstance(value, (Tensor, *PLAIN, *METADATA)):
        return value
    raise Unaskable


KEPT: Final = 8  # sizes up to this one do not shrink

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
"""Operators that check all sizes before they touch memory. Others may end the process
if the sizes do not fit."""

SMALLER: Final = (2, 3, 4, 5, 6, 7)
"""New sizes to try; multiples of the old size shrink in proportion."""

MAX_NUMEL: Final = 2**17
"""Limit on the elements of all tensors of a call that is asked at its true sizes."""

MAX_WORK: Final = 2**25
"""Limit on elements times the largest size, a bound on the work of such a call."""

N_TRIALS: Final = 40  # how often meta is asked for smaller sizes

ProxyArguments = tuple[Any, Any]

ACCEPTED: Final[set[object]] = set()
"""Smaller calls that both meta and the CPU accept, as ``Smaller.describe`` has them: a
block at other sizes has the same ones."""


def is_small(shapes: Sequence[Sequence[int]], share: int = 1) -> bool:
    """Whether a call with tensors of these shapes is within the limits, or a share."""
    numel = sum(map(math.prod, shapes))
    longest = max((n for shape in shapes for n in shape), default=1)
    return numel <= MAX_NUMEL // share and numel * longest <= MAX_WORK // share


def take_one(value: Any) -> Any:
    """Return the arguments of a factory with all lists of sizes replaced by ones."""
    if isinstance(value, dict):
        return {name: take_one(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        is_of_sizes = all(type(item) is int for item in value)
        return type(value)(1 if is_of_sizes else take_one(item) for item in value)
    return value


def shrink(
    func: Any, call: ProxyArguments, tensors: Sequence[Tensor]
) -> "Smaller | None":
    """Return a smaller call that can run on the CPU; None if there is none."""
    is_elementwise = torch.Tag.pointwise in func.tags
    name = func.name().removeprefix("aten::").partition(".")[0].strip("_")
    if not is_elementwise and name not in CHECKING:
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
    """A call whose sizes, in shapes and numbers, are replaced by smaller ones."""

    def __init__(self, call: ProxyArguments, tensors: Sequence[Tensor]) -> None:
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
        """Return the sizes that may shrink, the largest first."""
        found = {n for t in self._tensors for n in t.shape if n > KEPT}
        return sorted(found, reverse=True)

    def read(self, size: int) -> int:
        """Return the new value of a size."""
        return self._now.get(size, size)

    def fits(self) -> bool:
        """Whether the call is small enough."""
        shapes = [[*map(self.read, t.shape)] for t in self._tensors]
        return is_small(shapes, share=8)

    def forget(self) -> None:
        """Restore all sizes."""
        self._now.clear()

    def propose(self) -> None:
        """Shrink all sizes at once, the smallest first, so that no two become equal."""
        for size in reversed(self.list_sizes()):
            if self.read(size) > KEPT:
                any(self._scale(size, target) for target in SMALLER)

    def try_size(self, func: Callable[..., Any], size: int, target: int) -> bool:
        """Shrink a size and its multiples, if meta accepts that."""
        before = dict(self._now)
        if self._scale(size, target) and self.is_accepted(func):
            return True
        self._now = before
        return False

    def is_accepted(self, func: Callable[..., Any]) -> bool:
        """Whether meta accepts the call, and its results are small."""
        if self.describe(func) in ACCEPTED:
            return True
        args, kwargs = self.build("meta")
        try:
            made = func(*args, **kwargs)
        except Exception:  # noqa: BLE001  whatever it is: not these sizes
            return False
        return is_small([tensor.shape for tensor in tensors_in(made)])

    def _scale(self, size: int, target: int) -> bool:
        """Shrink a size and its multiples, unless two sizes would become equal."""
        before = dict(self._now)
        for value in self._all:
            if value % size == 0 and self.read(value) * target % size == 0:
                self._now[value] = self.read(value) * target // size
        if len(set(map(self.read, self._all))) == len(self._all):
            return True
        self._now = before
        return False

    def build(self, device: str, fill: Filling | None = None) -> ProxyArguments:
        """Return the arguments with the new sizes on a device, filled with zeros."""
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

    def describe(self, func: Any) -> object:
        """Return all that decides whether torch accepts the smaller call."""
        described = self._describe(self._call, {})
        return func, torch.get_default_dtype(), is_deterministic(), described

    def _describe(self, value: Any, number_by_id: dict[int, int]) -> object:
        # No function within describe(): it would hold itself, and with it the tensors.
        if isinstance(value, dict):
            value = (*value.items(),)
        if isinstance(value, (list, tuple)):
            return tuple(self._describe(item, number_by_id) for item in value)
        if isinstance(value, Tensor):
            number = number_by_id.setdefault(id(value), len(number_by_id))
            shape, steps, _ = self._lay_out(value)
            return number, value.dtype, value.is_conj(), *shape, *steps
        size = value if type(value) is int else 0
        small = int(math.copysign(self.read(abs(size)), size))
        return type(value), small if abs(size) > KEPT else value

    def _lay_out(self, tensor: Tensor) -> tuple[list[int], list[int], int]:
        """Return shape, strides and numel in the tensor's order, without gaps."""
        shape = [*map(self.read, tensor.shape)]
        steps, step = [0] * tensor.ndim, 1
        for i in sorted(range(tensor.ndim), key=lambda i: (tensor.stride(i), -i)):
            if tensor.stride(i) or tensor.shape[i] <= 1:
                steps[i] = step
                step *= max(shape[i], 1)
        return shape, steps, step

    def _make(self, tensor: Tensor, device: str, fill: Filling | None) -> Tensor:
        """Return a tensor with the order of dimensions of ``tensor``, without gaps."""
        shape, steps, step = self._lay_out(tensor)
        flat = torch.zeros(step, dtype=tensor.dtype, device=device)
        if fill is not None:
            fill(flat)
        made = flat.as_strided(shape, steps)
        return made.conj() if tensor.is_conj() else made
