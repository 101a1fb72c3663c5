"""``mm.diff``: two recordings, or a model and a checkpoint, compared.

``mm.diff(model, "pytorch_model.bin")`` says which names and shapes fit. A prefix that
one side has more, and a transposed matrix, are the two reasons that are
common. Read :func:`diff` first.
"""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias, overload

import torch
from torch import Tensor, nn

from meta_magic.designs.design import DEVICE, read_design
from meta_magic.designs.differences import Difference, compare, fold_texts
from meta_magic.materializing.fills.checkpoint_fill import open_checkpoint
from meta_magic.materializing.fills.inits import INITS
from meta_magic.trace.modules import at_any_depth
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_shape

Shape: TypeAlias = tuple[int, ...]

Checkpoint: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
"""A file or folder, as of ``materialize(init=...)``, or a state dict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDifference:
    """How the names of a checkpoint fit a model; ``print`` shows it.

    Attributes:
        prefix: A prefix that only the checkpoint's names have; "" for none.
        missing_prefix: A prefix that only the model's names have; "" for none.
        fitting: Names of the model whose tensor is there with the same shape.
        transposed: By name, shapes in the model and in the checkpoint, which are equal
            when the last two dimensions are swapped.
        reshaped: The same of other shapes.
        missing: Names of the model that the checkpoint lacks.
        unexpected: Names of the checkpoint that the model lacks.
    """

    prefix: str
    missing_prefix: str
    fitting: tuple[str, ...]
    transposed: Mapping[str, tuple[Shape, Shape]]
    reshaped: Mapping[str, tuple[Shape, Shape]]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(
            self.prefix
            or self.missing_prefix
            or self.transposed
            or self.reshaped
            or self.missing
            or self.unexpected
        )

    def __str__(self) -> str:
        n_wrong = sum(map(len, (self.transposed, self.reshaped, self.missing)))
        n = len(self.fitting) + n_wrong
        lines = [f"{len(self.fitting)} of {n} names of the model fit"]
        if self.prefix:
            lines[0] += f", once {self.prefix!r} is cut off the checkpoint's names"
        if self.missing_prefix:
            lines[0] += f", once {self.missing_prefix!r} is put before them"
        for what, shapes in (
            ("fits transposed", self.transposed),
            ("has another shape", self.reshaped),
        ):
            texts = {
                name: f"{format_shape(own)}, in the checkpoint {format_shape(other)}"
                for name, (own, other) in shapes.items()
            }
            lines += [f"~ {name}: {what}: {text}" for name, text in fold_texts(texts)]
        for sign, what, names in (
            ("-", "not in the checkpoint", self.missing),
            ("+", "only in the checkpoint", self.unexpected),
        ):
            folded = fold_texts(dict.fromkeys(names, what))
            lines += [f"{sign} {name}: {text}" for name, text in folded]
        return "\n".join(lines)


def diff_checkpoint(model: nn.Module, source: Checkpoint) -> CheckpointDifference:
    """Return how the names and shapes of a checkpoint fit a module.

    Args:
        model: A module, on meta or real.
        source: A file or folder, as of ``materialize(init=...)``, or a state dict.

    Raises:
        MaterializeError: The checkpoint cannot be read.
    """
    own = read_shapes(model.state_dict())
    others = read_shapes(source)
    prefix, missing_prefix = _find_prefix(own, others)
    others = {
        missing_prefix + name.removeprefix(prefix): shape
        for name, shape in others.items()
    }
    fitting, transposed, reshaped, missing = [], {}, {}, []
    for name, shape in own.items():
        other = others.pop(name, None)
        if other is None:
            missing.append(name)
        elif other == shape:
            fitting.append(name)
        elif other == (*shape[:-2], *shape[:-3:-1]):
            transposed[name] = shape, other
        else:
            reshaped[name] = shape, other
    return CheckpointDifference(
        prefix=prefix,
        missing_prefix=missing_prefix,
        fitting=tuple(fitting),
        transposed=transposed,
        reshaped=reshaped,
        missing=tuple(missing),
        unexpected=tuple(others),
    )


def read_shapes(source: Checkpoint) -> dict[str, Shape]:
    """Return the shapes of a checkpoint's tensors, by name."""
    if isinstance(source, Mapping):  # on meta, too
        return {n: tuple(x.shape) for n, x in source.items() if isinstance(x, Tensor)}
    entries = open_checkpoint(Path(source), torch.device("cpu"), INITS)
    return {name: entry.shape for name, entry in entries.items()}


LEAST: Final = 0.5
"""The share of the model's names that must match with a prefix."""


def _find_prefix(
    own: Mapping[str, Shape], others: Mapping[str, Shape]
) -> tuple[str, str]:
    """Return the prefix that only a checkpoint's names have, and that of the model's.

    One of them is "", or both.
    """
    n_same = len(own.keys() & others.keys())
    for longer, shorter, is_more in ((others, own, True), (own, others, False)):
        prefixes = Counter(
            name.removesuffix(end)
            for end in shorter
            for name in _index_ends(longer).get(end, ())
        )
        for prefix, n in prefixes.most_common(1):
            if prefix and n > n_same and n >= LEAST * min(len(own), len(others)):
                return (prefix, "") if is_more else ("", prefix)
    return "", ""


def _index_ends(names: Mapping[str, Shape]) -> dict[str, list[str]]:
    """Return names by each of their ends that begins after a dot."""
    ends: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        for at in range(1, len(parts)):
            ends.setdefault(".".join(parts[at:]), []).append(name)
    return ends


@overload
def diff(before: Trace, after: Trace, *, device: str = DEVICE) -> Difference: ...
@overload
def diff(
    before: nn.Module, after: Checkpoint, *, device: str = DEVICE
) -> CheckpointDifference: ...
def diff(before: Any, after: Any, *, device: str = DEVICE) -> Any:
    """Compare two recordings; or the names of a checkpoint with those of a module.

    Modules are matched by name, class and content: a renamed module, an inserted layer
    and a changed width are distinguished.

    Args:
        before: A recording; or a module, on meta or real.
        after: Another recording; or a checkpoint, as of ``materialize(init=...)``.
        device: Of the estimated time, by its name in ``devices.toml``.

    Raises:
        TypeError: These cannot be compared.
        UnknownDeviceError: There is no such device.
        MaterializeError: The checkpoint cannot be read.

    Example:
        >>> with record() as small:
        ...     model = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        >>> with record() as large:
        ...     model = nn.Sequential(nn.Linear(4, 16), nn.ReLU())
        >>> print(diff(small, large).changes[0])
        ~ model.0: Linear  out_features 8 -> 16
    """
    if isinstance(before, nn.Module) and isinstance(after, (str, os.PathLike, Mapping)):
        return diff_checkpoint(before, after)
    if not (isinstance(before, Trace) and isinstance(after, Trace)):
        given = f"a {type(before).__name__} and a {type(after).__name__}"
        raise TypeError(
            f"diff() takes two traces, or a module and a checkpoint: {given}"
        )
    designs = [at_any_depth(read_design)(one, device=device) for one in (before, after)]
    return replace(compare(*designs), after=after)
