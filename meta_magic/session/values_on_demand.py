"""Values on demand: what operators return that read data while a cell runs on meta.

The recorded program knows how each tensor was made: what an operator reads is replayed
on the CPU, if that takes little, and the operator runs on the real values. Only their
sizes come back, on meta again; or the value itself, where it is a number.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.errors import MissingValueError, ValueLimitError
from meta_magic.recording.as_device.cpu_kernels import put_on_meta
from meta_magic.recording.identities.clock import Clock
from meta_magic.recording.identities.places import Places, describe_function
from meta_magic.recording.identities.tensors import Seen
from meta_magic.recording.rows.findings import Findings
from meta_magic.recording.signatures.arguments import Args, Given, Inputs
from meta_magic.recording.signatures.entries import OpTable
from meta_magic.replaying.evaluator import Evaluator
from meta_magic.session.assumptions import Guess, guess_count
from meta_magic.torch_private.snapshot import WithoutModes
from meta_magic.trace.options import Options
from meta_magic.trace.program import Program
from meta_magic.trace.provenance import Assumption, Evaluation
from meta_magic.trace.units import format_shape

__all__ = ["ValuesOnDemand"]

COPY: Final = "aten._to_copy.default"
INDEX: Final = "aten.index.Tensor"
SELECT: Final = "aten.masked_select.default"
ASSUMABLE: Final = frozenset({INDEX, SELECT, "aten.nonzero.default"})
MASKS: Final = frozenset({torch.bool, torch.uint8})
ADVICE: Final = (
    "Give the value in Python, compute it under `with torch.device('cpu'):`, or keep "
    "shapes and branches independent of data"
)


class ValuesOnDemand:
    """Computes values that a cell asks for.

    Args:
        places: Which function is running.
        clock: Dates what was assumed.
        snapshot: Returns the program recorded so far.
        options: What one value may take, and what is assumed beyond.
        findings: Takes the calls that were answered, or whose sizes were assumed.
    """

    def __init__(
        self,
        places: Places,
        clock: Clock,
        snapshot: Callable[[], Program],
        options: Options,
        findings: Findings,
    ) -> None:
        self._places = places
        self._clock = clock
        self._snapshot = snapshot
        self._options = options
        self._findings = findings
        self._evaluator = Evaluator()
        self._beyond: dict[tuple[str, Any], int] = {}

    def evaluate(self, table: OpTable, given: Given) -> Any:
        """Return what an operator that failed on meta returns, if it needs only values.

        Returns:
            That; ``NotImplemented`` if it needs none.

        Raises:
            MissingValueError: They cannot be computed, or take too much.
        """
        chosen = find_read(table, given)
        if not chosen:
            return NotImplemented
        frame = self._places.frame
        place = table.name, frame and (frame.f_code, frame.f_lineno)
        # What took too much once would take no less a layer later.
        numel = chosen[0][0].numel()
        is_beyond = numel >= self._beyond.get(place, numel + 1)
        guess = self._guess(table, chosen) if is_beyond else None
        if guess is None:
            try:
                return self._run(table, given, chosen)
            except MissingValueError as error:
                guess = self._guess(table, chosen)
                if guess is None:
                    raise
                if isinstance(error, ValueLimitError):
                    self._beyond[place] = numel
        return self._assume(table, given.args, chosen[0][0], guess)

    def _run(self, table: OpTable, given: Given, chosen: Inputs) -> Any:
        """Return what an operator returns, given the values that it reads."""
        real_by_id, cost = self._find_reals(table, chosen)
        with WithoutModes():
            returned = call_with(table, given, real_by_id)
        self._findings.evaluations.append(cost)  # a call that failed is not recorded
        return returned

    def _guess(self, table: OpTable, chosen: Inputs) -> Guess | None:
        """Return what is assumed of the mask that an operator reads, if anything.

        One mask alone: how several would be true together nobody said.
        """
        (mask, (_, ref, _)), *others = chosen
        if table.name not in ASSUMABLE or others or ref is None:
            return None
        assumed = self._options.assumed
        return guess_count(self._snapshot(), ref.number, mask.shape, assumed)

    def _assume(self, table: OpTable, args: Args, mask: Tensor, guess: Guess) -> Any:
        """Return what an operator returns if so many elements of a mask are true."""
        counts = {id(mask): guess.n_true}
        call = Assumption(self._clock.now, guess.n_true, mask.numel(), guess.text)
        with WithoutModes():
            if table.name == INDEX:
                returned = index_by_masks(args, counts)
            elif table.name == SELECT:
                returned = select_by_mask(args[0], mask, counts)
            else:
                shape = (guess.n_true, mask.ndim)
                returned = torch.empty(shape, dtype=torch.long, device="meta")
        self._findings.assumptions.append(call)
        return returned

    def peek(self, tensor: Tensor, seen: Seen) -> Tensor | None:
        """Return what a tensor holds, if that takes little; the trace says nothing."""
        try:
            reals, _ = self._compute([(tensor, seen)], can_assume=False)
        except MissingValueError:
            return None
        return reals[0]

    def read(self, chosen: Inputs) -> list[Tensor]:
        """Return what tensors hold; those that share a storage do so again.

        Raises:
            MissingValueError: They cannot be computed, rest on what was assumed, or
                take too much.
        """
        return self._compute(chosen, can_assume=False)[0]

    def state_at(self, source: int) -> Tensor | None:
        """Return where a CPU generator would stand; None if that takes too much."""
        limits = self._options.limits
        return self._evaluator.state_at(self._snapshot(), source, limits)

    def _find_reals(
        self, table: OpTable, chosen: Inputs
    ) -> tuple[dict[int, Tensor], Evaluation]:
        try:
            reals, cost = self._compute(chosen)
        except MissingValueError as error:
            name = describe_function(self._places.function) or table.name
            shape = format_shape(chosen[0][0].shape)
            raise type(error)(
                f"{name} needs the value of a tensor {shape}: {error}. {ADVICE}."
            ) from None
        return {id(t): real for (t, _), real in zip(chosen, reals, strict=True)}, cost

    def _compute(
        self, chosen: Inputs, *, can_assume: bool = True
    ) -> tuple[list[Tensor], Evaluation]:
        """Return the real tensors for those on meta, and what they took."""
        wanted = [
            (ref.number, geometry.record)
            for _, (_, ref, geometry) in chosen
            if ref is not None
        ]
        program, limits = self._snapshot(), self._options.limits
        return self._evaluator.evaluate(program, wanted, limits, can_assume=can_assume)


def find_read(table: OpTable, given: Given) -> Inputs:
    """Return the meta tensors whose values an operator reads; none of most."""
    device = given.kwargs.get("device")
    is_copy = table.name == COPY and device is not None and device.type == "cpu"
    if not (table.reads_data or is_copy):
        return []
    has_masks = table.name in (INDEX, SELECT)  # and reads nothing else
    first, *others = given.inputs
    chosen = others if has_masks else [first, *others]
    return [
        (tensor, seen)
        for tensor, seen in chosen
        if seen[2].is_meta and (not has_masks or tensor.dtype in MASKS)
    ]


def call_with(table: OpTable, given: Given, real_by_id: Mapping[int, Tensor]) -> Any:
    """Return what an operator returns, given the values of what it reads."""
    args, kwargs, _ = given
    if table.name in (INDEX, SELECT):
        counts = {key: int(mask.count_nonzero()) for key, mask in real_by_id.items()}
        if table.name == INDEX:
            return index_by_masks(args, counts)
        return select_by_mask(args[0], args[1], counts)
    real_args, real_kwargs = replace((args, kwargs), real_by_id)
    returned = table.func(*real_args, **real_kwargs)
    return returned if table.name == COPY else put_on_meta(returned)


def replace(value: Any, real_by_id: Mapping[int, Tensor]) -> Any:
    """Return arguments with real tensors for those on meta."""
    if isinstance(value, Tensor):
        return real_by_id.get(id(value), value)
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, (list, tuple)):
        return type(value)([replace(item, real_by_id) for item in value])
    if isinstance(value, Mapping):
        return {name: replace(item, real_by_id) for name, item in value.items()}
    return value


def index_by_masks(args: Args, count_by_id: Mapping[int, int]) -> Tensor:
    """Index a meta tensor; each mask stands for the positions at which it is true.

    Args:
        args: Those of ``aten.index``.
        count_by_id: How many elements of each mask are true.

    Raises:
        IndexError: A mask does not fit, in torch's words.
    """
    tensor, indices = args
    positions: list[Tensor | None] = []
    for mask in indices:
        count = None if mask is None else count_by_id.get(id(mask))
        if count is None:
            positions.append(mask)
        else:
            at = len(positions)
            if mask.shape != tensor.shape[at : at + mask.ndim]:
                shapes = list(mask.shape), list(tensor.shape)
                raise IndexError(
                    f"The shape of the mask {shapes[0]} at index 0 does not match the "
                    f"shape of the indexed tensor {shapes[1]} at index {at}"
                )
            made = [torch.empty(count, dtype=torch.long, device="meta")] * mask.ndim
            positions.extend(made)
    return torch.ops.aten.index.Tensor(tensor, positions)  # type: ignore[no-any-return]  # torch.ops has no types


def select_by_mask(
    tensor: Tensor, mask: Tensor, count_by_id: Mapping[int, int]
) -> Tensor:
    """Return an empty tensor for each element at which a mask is true."""
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    repeats = prod(shape) // max(1, mask.numel())
    count = count_by_id[id(mask)] * repeats
    return torch.empty(count, dtype=tensor.dtype, device="meta")
