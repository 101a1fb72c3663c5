"""Answer operators that read data, such as ``loss.item()``, while a cell runs on meta.

The slice of the program that computes the operator's inputs is replayed on the CPU,
within limits, and the operator runs on the real values. A number is returned as a
number, a tensor as a meta tensor of the right size. Without this, ``item()`` would
raise in every cell. Read ``ValuesOnDemand.evaluate`` first.
"""

from collections.abc import Callable, Mapping, Sequence
from math import nan, prod
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, UntypedStorage

from meta_magic.errors import (
    MetaMagicError,
    MissingValueError,
    NotSentError,
    ReplayError,
    ValueLimitError,
)
from meta_magic.recording.as_device.cpu_kernels import (
    lay_out_as,
    make_proxy,
    match_cpu_strides,
    put_arguments_on_cpu,
    put_on_meta,
)
from meta_magic.recording.identities.call_sites import (
    TORCH_FILES,
    describe_function,
    read_variables,
)
from meta_magic.recording.identities.tensors import Seen, tensors_in
from meta_magic.recording.intercept.value_checks import ValueChecks
from meta_magic.recording.rows.writers import Writers
from meta_magic.recording.signatures.entries import (
    ALIGNED,
    Args,
    Given,
    Inputs,
    Kwargs,
    OpTable,
)
from meta_magic.replaying.call_runner import make_view
from meta_magic.replaying.evaluator import Evaluator
from meta_magic.replaying.special_operators import fill
from meta_magic.replaying.value_budget import ValueBudget
from meta_magic.session.assumptions import (
    CONTROL,
    Guess,
    OtherRanks,
    Routing,
    advise,
    advise_more,
    guess_count,
    guess_values,
)
from meta_magic.session.note_finders import describe_outside
from meta_magic.session.program_builder import ProgramBuilder
from meta_magic.torch_private.snapshot import RealTorch, WithoutModes
from meta_magic.trace.options import LITTLE_NBYTES, Assumed, Options
from meta_magic.trace.program_facts import Assumption, Evaluation
from meta_magic.trace.signature import Geometry
from meta_magic.trace.units import format_shape

COPY: Final = "aten._to_copy.default"
INDEX: Final = "aten.index.Tensor"
NONZERO: Final = "aten.nonzero.default"
SELECT: Final = "aten.masked_select.default"
ASSUMABLE: Final = frozenset({INDEX, SELECT, NONZERO})
READ: Final = frozenset({COPY, "aten._local_scalar_dense.default"})
NOTHING_ASSUMED: Final = Assumed()
MASKS: Final = frozenset({torch.bool, torch.uint8})
ADVICE: Final = (
    " Give the value in Python, compute it under `with torch.device('cpu'):`, or keep "
    "shapes and branches independent of data."
)


NOT_SENT: Final = "values=nan, because another rank sends it, which is not recorded"
"""The assumption about a loss in the last stage of a pipeline."""

ErrorKind = TypeVar("ErrorKind", bound=MetaMagicError)


class ValuesOnDemand:
    """Computes values that a cell asks for; the ``ValueSource`` of ``value_checks``."""

    def __init__(
        self, written: Writers, programs: ProgramBuilder, options: Options
    ) -> None:
        # Does nothing until `SharedMemory` sets it: arrays may have been written.
        self.prepare: Callable[[Sequence[Tensor]], object] = len
        self._sites, self._unseen = written.sites, written.constants.written_unseen
        self._changes = written.flags.changes
        self._clock = written.clock
        self._programs = programs
        self._options = options
        self._diagnostics = written.diagnostics
        self._registry = written.registry
        self._routing = Routing(written)
        self.evaluator = Evaluator()
        self._budget = ValueBudget(options.limits, self._describe)
        self._little = ValueBudget(options.limits.little(), self._describe)
        self._beyond: dict[tuple[str, Any], int] = {}
        world, note = options.world, written.diagnostics.note
        self.other_ranks = None if world is None else OtherRanks(world, note)

    def evaluate(self, table: OpTable, given: Given) -> Any:
        """Return the result of an operator on the values of its inputs."""
        chosen = _find_read(table, given)
        if not chosen:
            return NotImplemented
        frame = self._sites.frame
        key = table.name, frame and (frame.f_code, frame.f_lineno)
        # A value that was too expensive at this line will be too expensive in the next
        # layer.
        numel = chosen[0][0].numel()
        is_beyond = numel >= self._beyond.get(key, numel + 1)
        guess = self._guess(table, chosen)
        otherwise = guess or self._guess_of_world(table, chosen)
        if otherwise is None or not is_beyond:
            try:
                return self._run(table, given, chosen, guess, is_beyond=is_beyond)
            except MissingValueError as error:
                is_limit = isinstance(error, ValueLimitError)
                if is_limit:
                    self._beyond[key] = numel
                if table.name == ALIGNED:
                    return True  # torch makes the same calls for True and False
                is_not_sent = find_cause(error, NotSentError) is not None
                if otherwise is None or not (is_limit or guess or is_not_sent):
                    self._raise_refusal(error)
                    raise
                if is_not_sent and guess is None:
                    otherwise = otherwise._replace(text=NOT_SENT)
        read, guess = chosen[0][0], otherwise
        call = Assumption(self._clock.now, guess.n_true, numel, guess.text, guess.value)
        with WithoutModes():
            returned = _call_assumed(table, given, read, call)
        self._diagnostics.n_answered += 1
        self._diagnostics.assumptions.append(call)
        return returned

    def _run(
        self,
        table: OpTable,
        given: Given,
        chosen: Inputs,
        guess: Guess | None,
        *,
        is_beyond: bool,
    ) -> Any:
        """Compute the values that an operator reads, and call it with them."""
        try:
            reals, cost = self._compute(
                chosen,
                self._budget if guess is None else self._little,
                stops_at_limit=is_beyond or guess is not None,
            )
        except MissingValueError as error:
            raise self._explain(error, table, chosen) from error
        real_by_id = {id(t): real for (t, _), real in zip(chosen, reals, strict=True)}
        with WithoutModes():
            if table.written:  # the evaluator keeps what it computed
                real_by_id = {key: real.clone() for key, real in real_by_id.items()}
            returned = _call_with(table, given, real_by_id)
        self._diagnostics.n_answered += 1
        self._diagnostics.evaluations.append(cost)  # not before: the call may fail
        return returned

    def _guess(self, table: OpTable, chosen: Inputs) -> Guess | None:
        """Return the assumption about the one tensor that an operator reads, if any."""
        (tensor, (_, ref, _)), *others = chosen
        assumed = self._options.assumed
        if others or ref is None or assumed == NOTHING_ASSUMED:
            return None
        routed = self._routing.find(ref.number) if assumed.is_uniform else None
        if table.name in ASSUMABLE:
            return guess_count(routed, tensor.shape, assumed)
        most = max(self._options.limits.nbytes or 0, LITTLE_NBYTES)
        if table.name in READ and tensor.nbytes <= most:
            return guess_values(routed, tensor, assumed)
        return None

    def _guess_of_world(self, table: OpTable, chosen: Inputs) -> Guess | None:
        """Return NaN for a number that a world only prints; None for a condition."""
        tensor = chosen[0][0]
        function = describe_function(self._sites.function)
        is_list = function == "torch.Tensor.tolist" and tensor.nbytes <= LITTLE_NBYTES
        is_read = (tensor.numel() == 1 or is_list) and tensor.is_floating_point()
        if self.other_ranks is None or table.name not in READ or not is_read:
            return None
        if function in CONTROL:
            return None
        return Guess(0, "values=nan, because it takes too much to compute", nan)

    def peek(
        self, tensor: Tensor, seen: Seen, budget: ValueBudget | None = None
    ) -> Tensor | None:
        """Return the values of a tensor within the limits; no evaluation is noted."""
        try:
            read, most = [(tensor, seen)], budget or self._budget
            reals, _ = self._compute(read, most, can_assume=False, stops_at_limit=True)
        except MissingValueError:
            return None
        return reals[0]

    def peek_to_send(self, tensor: Tensor, seen: Seen) -> tuple[Tensor | None, bool]:
        """Return what another process gets, and if it rests on others; note nothing."""
        other_ranks, self.other_ranks = self.other_ranks, None
        is_whole = not (tensor.is_floating_point() or tensor.is_complex())
        try:
            values = self.peek(tensor, seen, self._budget if is_whole else self._little)
        finally:
            self.other_ranks = other_ranks
        columns, storage = self._programs.read_columns(), seen[1]
        if other_ranks is None or storage is None:
            return values, False
        return values, other_ranks.rests_on_others(columns, storage.number)

    def find_number(self, tensor: Tensor, seen: Seen) -> Any:
        """Return the number in a tensor, if a running loop replay has it; else None.

        Only where torch computes with real tensors.
        """
        found = self._go_on([(tensor, seen)])
        if found is None:
            return None
        (real,), cost = found
        number = make_view(real, seen[2].record).item()
        self._diagnostics.n_answered += 1
        self._diagnostics.evaluations.append(cost)
        return number

    def _go_on(self, chosen: Inputs) -> tuple[list[UntypedStorage], Evaluation] | None:
        """Return storages of tensors, and their cost, if a running loop has them."""
        loops, refs = self.evaluator.loops, [seen[1] for _, seen in chosen]
        if not loops.is_live or self._budget.is_spent or self._may_differ():
            return None
        if None in refs:
            return None
        self.prepare([tensor for tensor, _ in chosen])
        storages, n_unseen = [ref.number for ref in refs if ref], len(self._unseen)
        columns = self._programs.read_columns()
        with self._budget:
            found = loops.find_values(columns, storages, n_unseen)
        if found is not None and self.other_ranks is not None:
            self.other_ranks.note(columns, storages)
        return found

    def look(
        self, storage: int, geometry: Geometry, budget: ValueBudget
    ) -> Tensor | None:
        """Return a tensor for a check, if a running loop has it; nothing is noted."""
        loops = self.evaluator.loops
        if not loops.is_near(self._clock.now) or self._may_differ():
            return None
        with RealTorch():
            columns = self._programs.read_columns()
            found = loops.look(columns, storage, len(self._unseen), budget)
            return None if found is None else make_view(found, geometry)

    def _may_differ(self) -> bool:
        """Whether a loop may go on with other flags of torch, or assumed values."""
        is_assumed = self._options.assumed != NOTHING_ASSUMED
        return bool(is_assumed or self._changes or self._diagnostics.assumptions)

    def read(self, chosen: Inputs, *, can_wait: bool = True) -> list[Tensor]:
        """Return the values of tensors, which do not depend on assumptions."""
        budget = self._budget if can_wait else self._little
        stops = not can_wait
        return self._compute(chosen, budget, stops_at_limit=stops, can_assume=False)[0]

    def check_saved(self, chosen: Inputs, what: str) -> None:
        """Refuse to save values that rest on other processes."""
        if self.other_ranks is not None:
            storages = [seen[1].number for _, seen in chosen if seen[1] is not None]
            self.other_ranks.refuse(self._programs.read_columns(), storages, what)

    def note_received(self, seen: Seen) -> None:
        """Note that a tensor holds what another process really sent."""
        if self.other_ranks is not None and seen[1] is not None:
            self.other_ranks.forget(self._programs.read_columns(), seen[1].number)

    def state_at(self, source: int) -> Tensor | None:
        """Return the state of a CPU generator; None if that is beyond the limits."""
        return self.evaluator.state_at(self._programs.snapshot(), source, self._budget)

    def _explain(
        self, error: MissingValueError, table: OpTable, chosen: Inputs
    ) -> MissingValueError:
        """Return an error that says which value is missing, and what to do."""
        function = describe_function(self._sites.function) or table.name
        shape = format_shape(chosen[0][0].shape)
        frame = self._sites.frame
        at = describe_outside(error, self._registry, frame, self._programs.snapshot())
        text = f"{function} needs the value of a tensor {shape}: {error}{at}."
        if not isinstance(error, ValueLimitError):
            explained = type(error)(f"{text}{ADVICE}")
            explained.__dict__.update(error.__dict__)
            return explained
        ways = [f"allow it ({way})" for way in advise_more(error, self._options)]
        (tensor, (_, ref, _)), *others = chosen
        is_mask = table.name in ASSUMABLE
        if ref is not None and not others and (is_mask or table.name in READ):
            routed = self._routing.find(ref.number)
            way = advise(routed, tensor, function, is_mask=is_mask)
            ways.append(f"go on without it ({way})")
        advice = f" You can {', or '.join(ways)}." if ways else ADVICE
        return ValueLimitError(text + advice, error.wanted)

    def _raise_refusal(self, error: MissingValueError) -> None:
        """Raise the CPU's own error, if any, of an operator that a value depends on."""
        cause = find_cause(error, ReplayError)
        error.__cause__ = None
        if cause is None or cause.refusal is None or self._options.device != "cpu":
            return
        refusal = cause.refusal.with_traceback(None)  # it would keep real tensors
        refusal.add_note(f"meta_magic: {cause}")
        try:
            raise refusal from None
        finally:
            # Otherwise these errors and frames keep each other alive.
            refusal.__context__ = None
            del refusal, cause, error

    def _compute(
        self,
        chosen: Inputs,
        budget: ValueBudget,
        *,
        stops_at_limit: bool = False,
        can_assume: bool = True,
    ) -> tuple[list[Tensor], Evaluation]:
        """Return real tensors for those on meta, and their cost."""
        wanted = [
            (ref.number, geometry.record)
            for _, (_, ref, geometry) in chosen
            if ref is not None
        ]
        if self.evaluator.loops.is_live:
            with RealTorch():
                found = self._go_on(chosen)
                if found is not None:
                    copies = {id(storage): storage.clone() for storage in found[0]}
                    pairs = zip(chosen, found[0], strict=True)
                    reals = [
                        make_view(copies[id(real)], seen[2].record)
                        for (_, seen), real in pairs
                    ]
                    return reals, found[1]
        self.prepare([tensor for tensor, _ in chosen])
        program = self._programs.snapshot()
        values = self.evaluator.evaluate(
            program,
            wanted,
            budget,
            can_assume=can_assume,
            stops_at_limit=stops_at_limit,
        )
        if self.other_ranks is not None:
            numbers = [number for number, _ in wanted]
            self.other_ranks.note(self._programs.read_columns(), numbers)
        return values

    def _describe(self) -> str:
        """Return what is computed now, such as ``loss, line 33``."""
        running = self._sites.running
        frame, given = (running.frame, running.args) if running else (None, ())
        while frame is not None and frame.f_code.co_filename.startswith(TORCH_FILES):
            frame = frame.f_back
        variables = {} if frame is None else read_variables(frame)
        names = [
            name
            for name, value in variables.items()
            if not name.startswith("_") and any(value is asked for asked in given)
        ]
        function = describe_function(self._sites.function)
        name = names[0] if names else function or "a value"
        line = self._sites.current_line()
        return name if line is None else f"{name}, line {line}"


def _find_read(table: OpTable, given: Given) -> Inputs:
    """Return the meta tensors whose values an operator reads; [] for most operators."""
    device = given.kwargs.get("device")
    is_copy = table.name == COPY and device is not None and device.type == "cpu"
    if not given.inputs or not (table.reads_data or is_copy or table.is_foreign):
        return []
    outs = [*map(id, _find_outs(table, given.kwargs))]
    has_masks = table.name in (INDEX, SELECT, ALIGNED)  # they read only their masks
    first, *others = given.inputs
    chosen = others if has_masks else [first, *others]
    return [
        (tensor, seen)
        for tensor, seen in chosen
        if seen[2].is_meta
        and id(tensor) not in outs
        and (not has_masks or tensor.dtype in MASKS)
    ]


# Calls of the operators that read values


def _call_with(table: OpTable, given: Given, real_by_id: Mapping[int, Tensor]) -> Any:
    args, kwargs, _ = given
    if table.name in (INDEX, SELECT):
        counts = {key: int(mask.count_nonzero()) for key, mask in real_by_id.items()}
        if table.name == INDEX:
            return _index_by_masks(args, counts)
        return _select_by_mask(args[0], args[1], counts)
    if table.name == ALIGNED:  # it reads only the shape of its first argument
        other = torch.empty(1, device="cpu").expand(args[0].shape)
        real_by_id = {**real_by_id, id(args[0]): other}
    outs = _find_outs(table, kwargs)
    real_by_id = {**real_by_id, **{id(out): make_proxy(out) for out in outs}}
    real_args, real_kwargs = put_arguments_on_cpu((args, kwargs), real_by_id)
    returned = table.func(*real_args, **real_kwargs)
    for out in outs:
        lay_out_as(real_by_id[id(out)], out)
    out_by_id = {id(real_by_id[id(out)]): out for out in outs}
    return returned if table.name == COPY else put_on_meta(returned, out_by_id)


def _call_assumed(table: OpTable, given: Given, read: Tensor, guess: Assumption) -> Any:
    """Return the result of an operator whose values are as assumed."""
    counts = {id(read): guess.n_true}
    if table.name == INDEX:
        return _index_by_masks(given.args, counts)
    if table.name == SELECT:
        return _select_by_mask(given.args[0], read, counts)
    if table.name == NONZERO:
        shape = (guess.n_true, read.ndim)
        return torch.empty(shape, dtype=torch.long, device="meta")
    if table.name == COPY:
        dtype = given.kwargs.get("dtype") or read.dtype
        return fill(guess, read.shape, dtype)
    number = guess.n_true if guess.value is None else guess.value
    is_whole = float(number).is_integer()
    has_fractions = read.dtype.is_floating_point or read.dtype.is_complex
    return int(number) if is_whole and not has_fractions else number


def _find_outs(table: OpTable, kwargs: Kwargs) -> list[Tensor]:
    given = [kwargs.get(name) for name in table.written] if table.has_out else []
    return tensors_in(given)


def _index_by_masks(args: Args, count_by_id: Mapping[int, int]) -> Tensor:
    """Index a meta tensor by the positions at which each mask is true."""
    tensor, indices = args
    positions: list[Tensor | None] = []
    for mask in indices:
        count = None if mask is None else count_by_id.get(id(mask))
        if count is None:
            positions.append(mask)
            continue
        at = len(positions)
        if mask.shape != tensor.shape[at : at + mask.ndim]:
            shapes = list(mask.shape), list(tensor.shape)
            raise IndexError(
                f"The shape of the mask {shapes[0]} at index 0 does not match the "
                f"shape of the indexed tensor {shapes[1]} at index {at}"
            )
        made = [torch.empty(count, dtype=torch.long, device="meta")] * mask.ndim
        positions.extend(made)
    index = torch.ops.aten.index.Tensor
    found: Tensor = index(tensor, positions)
    return match_cpu_strides(index, (tensor, positions), {}, found)  # type: ignore[no-any-return]  # it returns what any operator does


def _select_by_mask(tensor: Tensor, mask: Tensor, counts: Mapping[int, int]) -> Tensor:
    """Return a meta tensor with an element for each true one of a mask."""
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    repeats = prod(shape) // max(1, mask.numel())
    count = counts[id(mask)] * repeats
    return torch.empty(count, dtype=tensor.dtype, device="meta")


SHARE_OF_CHECK = 8  # one check may take an eighth of the limits of a value


def make_checks(
    write: Writers, programs: ProgramBuilder, options: Options, values: ValuesOnDemand
) -> ValueChecks:
    """Return the checks that refuse calls whose operands have values out of range."""
    limits = options.limits
    budget = ValueBudget(
        limits if options.check_values else limits.little(SHARE_OF_CHECK)
    )
    evaluator = Evaluator(is_private=True)  # the trace shows nothing of checks

    def evaluate(storage: int, geometry: Geometry) -> Tensor:
        known = values.look(storage, geometry, budget)
        if known is not None:
            return known
        wanted = [(storage, geometry)]
        reals, _ = evaluator.evaluate(
            programs.snapshot(), wanted, budget, can_assume=False, stops_at_limit=True
        )
        return reals[0]

    return ValueChecks(write, evaluate, options)


def find_cause(error: BaseException | None, kind: type[ErrorKind]) -> ErrorKind | None:
    """Return the error, or the first of its causes, that is of a kind."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__
    return error
