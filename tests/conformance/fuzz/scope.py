"""What a program has made so far, and how the gaps of a template are filled from it."""

import random
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from tests.conformance.fuzz.grammar import FAMILIES, SIMPLE, WORDS
from tests.conformance.fuzz.prelude import Labeled
from tests.conformance.fuzz.statements.learning import find_input
from tests.conformance.fuzz.statements.tensors import SHAPES

GAP = re.compile(r"\{([a-z_]+)(\d*)\}")
MAX_NUMEL = 2000
MAX_NDIM = 5


class EmptyGapError(Exception):
    """Nothing that was made so far fits into a gap."""


def has_lost_its_history(tensor: Tensor) -> bool:
    """Whether it is one of several views whose base was written: torch refuses it."""
    try:
        tensor.grad_fn
    except RuntimeError:
        return True
    return False


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is small and has strides, so that any operator may take it."""
    if tensor.layout is not torch.strided or is_lazy(tensor):
        return False
    if has_lost_its_history(tensor):
        return False
    return tensor.numel() <= MAX_NUMEL and tensor.ndim <= MAX_NDIM


def is_resizable(tensor: Tensor) -> bool:
    """Whether a tensor may be an ``out=`` of any size: it is torch's own memory.

    Memory of numpy torch refuses to resize, once the tensor has the new sizes already:
    what writes it then ends the process.
    """
    return not tensor.requires_grad and tensor.untyped_storage().resizable()


FITS: dict[str, Callable[[Tensor], bool]] = {
    "any": lambda t: True,
    "float": lambda t: t.is_floating_point(),
    "int": lambda t: t.dtype is torch.long,
    "bool": lambda t: t.dtype is torch.bool,
    "complex": lambda t: t.is_complex(),
    "vector": lambda t: t.is_floating_point() and t.ndim == 1 and t.numel() > 0,
    "matrix": lambda t: t.is_floating_point() and t.ndim == 2,
    "square": lambda t: (
        t.is_floating_point() and t.ndim == 2 and t.shape[0] == t.shape[1]
    ),
    "batch": lambda t: t.is_floating_point() and t.ndim == 3,
    "image": lambda t: t.is_floating_point() and t.ndim == 4,
    "one": lambda t: t.numel() == 1,
    "dims": lambda t: t.ndim > 0,
    "leaf": lambda t: t.requires_grad and t.is_leaf,
    "wanted": lambda t: t.requires_grad and t.is_floating_point() and t.numel() > 0,
    "constant": lambda t: not t.requires_grad,
    "inference": lambda t: t.is_inference(),
    "labeled": lambda t: type(t) is Labeled,
    "target": is_resizable,
    "floattarget": lambda t: t.is_floating_point() and is_resizable(t),
    "inttarget": lambda t: t.dtype is torch.long and is_resizable(t),
    "complextarget": lambda t: t.is_complex() and is_resizable(t),
    "floatconstant": lambda t: t.is_floating_point() and not t.requires_grad,
}
"""Which tensors fit into the gap of a name."""

OBJECTS: dict[str, type] = {
    "module": nn.Module,
    "optimizer": torch.optim.Optimizer,
    "own": torch.Generator,
}
"""Whose instances fit into the gap of a name."""


def is_broadcastable(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have a common shape."""
    sizes = zip(reversed(a.shape), reversed(b.shape), strict=False)
    return all(m == n or 1 in (m, n) for m, n in sizes)


PAIRS: dict[str, Callable[[Tensor, Tensor], bool]] = {
    "same": is_broadcastable,
    "twin": lambda a, b: (
        (a.shape, a.dtype, a.requires_grad) == (b.shape, b.dtype, False)
    ),
}
"""Which tensors fit into the gap of a name, given the first of the line."""

NEW = {"new": "t", "m": "m", "o": "o", "g": "g", "v": "v"}
"""How the new names in a gap begin."""

OF_FIRST = frozenset({"dim", "index", "view", "size"})
"""Gaps that belong to the first tensor of the line."""


class Scope:
    """The variables of a program that is being generated.

    Args:
        chance: What decides.
        namespace: The variables by name, with real values.
        without: Texts that must not stand in a statement.
    """

    def __init__(
        self,
        chance: random.Random,
        namespace: Mapping[str, Any],
        without: tuple[str, ...] = (),
    ) -> None:
        self.chance = chance
        self.without = without
        self.namespace = namespace
        self._n_names = 0
        self._depth = 0

    def fill(self, template: str) -> str:
        """Return a template with all of its gaps filled.

        A gap that stands twice is filled alike; a digit tells two of a kind apart.
        The tensors are picked first: the other gaps may depend on them.

        Raises:
            EmptyGapError: There is nothing for one of them.
        """
        filled: dict[str, str] = {}
        picked: list[Tensor] = []
        gaps = [(m.group(0), m.group(1)) for m in GAP.finditer(template)]
        for gap, name in sorted(gaps, key=lambda pair: pair[1] not in FITS):
            if gap not in filled:
                filled[gap] = self.answer(name, picked)
                value = self.namespace.get(filled[gap])
                picked += [value] if isinstance(value, Tensor) else []
        text = GAP.sub(lambda match: filled[match.group(0)], template)
        if any(part in text for part in self.without):
            raise EmptyGapError
        return text

    def answer(self, name: str, picked: list[Tensor]) -> str:
        """Return what to put into a gap, given the tensors picked in earlier ones."""
        if name in FITS:
            return self.pick(lambda v: is_tensor(v) and FITS[name](v))
        if name in OBJECTS:
            return self.pick(lambda v: isinstance(v, OBJECTS[name]))
        if name in PAIRS:
            return self.pick(lambda v: is_tensor(v) and PAIRS[name](v, picked[0]))
        if name in NEW:
            self._n_names += 1
            return f"{NEW[name]}{self._n_names}"
        make = getattr(self, f"make_{name}", None)
        if make is None:
            return self.chance.choice(WORDS[name])
        return str(make(picked[0]) if name in OF_FIRST else make())

    def pick(self, fits: Callable[[Any], bool]) -> str:
        """Return the name of a variable, rather of one that was made lately."""
        names = [name for name, value in self.namespace.items() if fits(value)]
        if not names:
            raise EmptyGapError
        return names[-1 - min(int(self.chance.expovariate(0.4)), len(names) - 1)]

    def make_shape(self) -> str:
        """Return a shape, mostly a small one that others have, too."""
        return self.chance.choice(SHAPES)

    def make_dim(self, tensor: Tensor) -> int:
        """Return a dimension of a tensor."""
        if not tensor.ndim:
            raise EmptyGapError
        return self.chance.randrange(-tensor.ndim, tensor.ndim)

    def make_size(self, tensor: Tensor) -> str:
        """Return the shape of a tensor."""
        return str(tuple(tensor.shape))

    def make_index(self, tensor: Tensor) -> str:
        """Return what may stand between brackets behind a tensor."""
        if not tensor.numel():
            raise EmptyGapError
        parts = [self.make_index_part(n) for n in tensor.shape]
        parts = parts[: self.chance.randint(0, len(parts))]
        extra = self.chance.choice(["", "", "", "...", "None"])
        return ", ".join([*parts, extra] if extra or not parts else parts) or "..."

    def make_index_part(self, n: int) -> str:
        """Return an index of a dimension of a size."""
        i, j = sorted((self.chance.randrange(n), self.chance.randrange(n)))
        return self.chance.choice(
            [
                str(i), str(i - n), ":", f"{i}:", f":{j}", "::2", f"{i}:{j + 1}",
                f"[{i}, {j}]", f"torch.tensor([{j}, {i}])", f"torch.arange({n}) > {i}",
                f"torch.tensor({i})", str([k != i for k in range(n)]),
            ]
        )  # fmt: skip

    def make_view(self, tensor: Tensor) -> str:
        """Return another shape with as many entries."""
        if tensor.ndim > 1 and tensor.numel():
            joined = (tensor.shape[0] * tensor.shape[1], *tensor.shape[2:])
            swapped = tuple(reversed(tensor.shape))
            return str(self.chance.choice([(-1,), joined, swapped, (1, -1)]))
        return "(-1,)" if self.chance.random() < 0.5 else "(1, -1)"

    def make_gen(self) -> str:
        """Return the argument of an own generator, or nothing."""
        try:
            return f", generator={self.answer('own', [])}"
        except EmptyGapError:
            return ""

    def make_input(self) -> str:
        """Return a call of a module on an input that it takes."""
        name = self.answer("module", [])
        text = find_input(self.namespace[name])
        if text is None:
            raise EmptyGapError
        return f"{name}({text})"

    def make_statement(self) -> str:
        """Return a statement of one line to put below another."""
        if self._depth:
            raise EmptyGapError
        self._depth += 1
        try:
            family = self.chance.choice(SIMPLE)
            return self.fill(self.chance.choice(FAMILIES[family]))
        finally:
            self._depth -= 1


def is_tensor(value: Any) -> bool:
    """Whether something is a tensor that any operator may take."""
    return isinstance(value, Tensor) and is_plain(value)
