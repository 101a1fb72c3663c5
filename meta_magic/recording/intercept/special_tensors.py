"""Handle tensors that are not plain: subclasses, sparse, quantized and nested tensors.

A subclass runs operators on plain tensors, which are recorded. For the others torch has
few meta kernels, and some of those are wrong: the positions of a sparse tensor have no
values, and ``SparseAdam`` would change nothing. So the positions of the operands are
computed, which is cheap, and the operator runs on the CPU with values of one
(``SparseCalls.run``).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from meta_magic.errors import MetaMagicError, MissingValueError
from meta_magic.recording.as_device.cpu_kernels import (
    MAX_NBYTES,
    ask_cpu,
    count_nbytes,
    make_proxy,
    put_arguments_on_cpu,
    put_on_meta,
)
from meta_magic.recording.identities.origins import find_positions, plan_positions
from meta_magic.recording.identities.tensors import (
    QUANTIZED,
    Seen,
    TensorRegistry,
    is_traced,
    rebuild,
    tensors_in,
)
from meta_magic.recording.intercept.reported_devices import as_fake
from meta_magic.recording.intercept.value_checks import ValueSource
from meta_magic.recording.rows.writers import Writers
from meta_magic.recording.signatures.entries import (
    Args,
    Given,
    Kwargs,
    LiveCall,
    OpTable,
)
from meta_magic.torch_private.modes import fake_tensor_mode, make_fake
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.torch_private.tensor_internals import (
    CONSTRUCTORS,
    READERS,
    RIGHT_ON_META,
    SPARSE,
    build_sparse,
    has_coalesced,
    parts_of,
    plan_part,
)
from meta_magic.trace.options import DeviceName
from meta_magic.trace.signature import COPIES
from meta_magic.trace.units import format_shape

ON_CPU: Final = "compute it under `with torch.device('cpu'):`"
HINTS: Final = {
    "quantized": f"{ON_CPU}, or quantize by a tensor subclass, as torchao does",
    "sparse": f"{ON_CPU}, or with dense tensors",
    "nested": f"{ON_CPU}, or with layout=torch.jagged",
    "mkldnn": f"{ON_CPU}, or leave the layout to torch",
}
"""Advice for each kind of tensor that has no meta kernels."""

FAKE: Final = "FakeTensor"
PLAIN: Final = frozenset[type]({Tensor, nn.Parameter})

ASSERTION: Final = "INTERNAL ASSERT FAILED"
NESTED: Final = (
    "torch has no strided nested tensors on meta (see layout=torch.jagged, which is "
    "recorded)"
)

FLEX_ATTENTION: Final = "higher_order.flex_attention"
ASSUMED: Final = (
    "flex_attention was recorded as torch runs it without torch.compile: the whole "
    "matrix of scores, masked blocks and all"
)


class SpecialTensors:
    """Handles tensors that are not plain; notes what is not recorded."""

    def __init__(self, write: Writers) -> None:
        self._plan, self._sites = write.plan, write.sites
        self._diagnostics = write.diagnostics

    def pass_on(
        self, func: Any, types: Sequence[type], args: Args, kwargs: Kwargs | None
    ) -> tuple[Any] | None:
        """Let tensor subclasses run an operator; None if all tensors are plain."""
        for kind in types:
            if is_traced(kind):
                self._diagnostics.count_unseen(kind.__name__)
                given = self._make_all_fake((args, kwargs or {}))
                return (func(*given[0], **given[1]),)
            handler = getattr(kind, "__torch_dispatch__", None)
            if handler is not Tensor.__torch_dispatch__:
                return (NotImplemented,)  # its operators on plain tensors come here
        return None

    def _make_all_fake(self, given: Any) -> Any:
        """Return arguments with fake tensors for plain ones, which modules may hold."""
        fakes = [t for t in tensors_in(*given) if type(t).__name__ == FAKE]
        if not fakes:
            return given

        def make(value: Any) -> Any:
            if type(value) not in PLAIN or not value.is_meta:
                return value
            placement = self._plan.placement_of(value) or self._plan.home
            return make_fake(value, fakes[0], as_fake(placement))

        return rebuild(given, make)

    def has_unseen(self, made: Sequence[Tensor]) -> bool:
        """Whether an operator made tensors that cannot be recorded."""
        names = [type(tensor).__name__ for tensor in made if is_traced(type(tensor))]
        names += ["a nested tensor" for tensor in made if is_nested(tensor)]
        if names:
            self._diagnostics.count_unseen(names[0])
        return bool(names)

    def is_unrecorded(self, args: Args, kwargs: Kwargs) -> bool:
        """Whether an operator is not recorded: nested tensors have no shape."""
        if fake_tensor_mode() is not None:
            self._diagnostics.count_unseen("FakeTensor")
            return True
        found = any(map(is_nested, tensors_in(args, tuple(kwargs.values()))))
        if found:
            self._diagnostics.count_unseen("a nested tensor")
        return found

    def trace(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Call a higher-order operator on traced tensors; NotImplemented for others."""
        kinds = [type(tensor) for tensor in tensors_in(args, kwargs)]
        passed = self.pass_on(func, list(filter(is_traced, kinds)), args, kwargs)
        return NotImplemented if passed is None else passed[0]

    def begin(self, op: str) -> None:
        """Note what an operator assumes; operators inside get their own call sites."""
        if op == FLEX_ATTENTION:
            self._diagnostics.note("foreign", ASSUMED)
        self._sites.running = None


def is_nested(tensor: Tensor) -> bool:
    """Whether a tensor has rows of different lengths, in torch's own layout."""
    return type(tensor) is Tensor and tensor.is_nested


def check_quantized(op: str, call: LiveCall) -> None:
    """Raise if a quantized tensor was asked for and another was made on meta."""
    given = (*call.args, *call.kwargs.values())
    wanted = [v for v in given if isinstance(v, torch.dtype) and v in QUANTIZED]
    metas = [seen[2].record.dtype for _, seen in call.outputs if seen[2].is_meta]
    if wanted and metas and (made := metas[0]) not in QUANTIZED:
        raise MetaMagicError(
            f"{op} makes a tensor of {made} on meta, not of {wanted[0]}: torch has no "
            f"quantized tensors there. To go on, {HINTS['quantized']}."
        )


def explain_missing_kernel(
    error: Exception, op: str, inputs: Sequence[tuple[Tensor, Seen]]
) -> None:
    """Add to an operator's own error that meta has no kernel for it, and what helps."""
    kind = find_kind(op, inputs)
    if kind is not None and isinstance(error, RuntimeError):
        is_assertion = kind == "nested" and ASSERTION in str(error)
        error = NotImplementedError(NESTED) if is_assertion else error
        error.add_note(
            f"meta_magic: on meta torch has no {op} ({kind}). To go on, {HINTS[kind]}."
        )
        try:
            if is_assertion:
                raise error from None
        finally:
            del error  # else this frame and the error keep each other alive
    elif isinstance(error, NotImplementedError):
        error.add_note(
            f"meta_magic: {op} has no kernel on meta, so its result is not known. "
            f"To go on, {ON_CPU}, or write one (see torch.library.register_fake)."
        )


def find_kind(op: str, inputs: Sequence[tuple[Tensor, Seen]]) -> str | None:
    """Return the kind of an operator's tensors for which meta has few kernels."""
    texts = [op, *(str(seen[2].record.layout) for _, seen in inputs)]
    texts += ["quantized" for _, seen in inputs if seen[2].record.dtype in QUANTIZED]
    texts += ["nested" for tensor, _ in inputs if tensor.is_nested]
    found = (kind for kind in HINTS if any(kind.rstrip("d") in text for text in texts))
    return next(found, None)


class Known(NamedTuple):
    """A sparse argument on meta, its replacement on the CPU, and their positions."""

    planned: Tensor
    real: Tensor
    positions: tuple[Tensor, ...]

    def has(self, real: Tensor) -> bool:
        """Whether a tensor on the CPU has the same positions, in the same order."""
        own, others = self.positions, parts_of(real)[:-1]
        is_alike = self.real.layout is real.layout
        is_alike = is_alike and has_coalesced(self.planned) == has_coalesced(real)
        return is_alike and all(map(torch.equal, own, others))


class SparseCalls:
    """Runs the operators that take or make sparse tensors."""

    def __init__(self, registry: TensorRegistry, values: ValueSource) -> None:
        self._registry = registry
        self._values = values
        self._making: set[object] = set()

    def run(
        self,
        table: OpTable,
        given: Given,
        run: Callable[[DeviceName], Any],
        kernels: DeviceName,
    ) -> Any:
        """Return the results of an operator, sparse ones with all their elements."""
        layouts = [tensor.layout for tensor, _ in given.inputs]
        is_on_meta = all(seen[2].is_meta or not t.ndim for t, seen in given.inputs)
        if not is_on_meta or not layouts:
            return run(kernels)
        if table.name.startswith(READERS):
            return self._run_for_real(table, given, reads_all=True)
        is_of_dense = SPARSE.isdisjoint(layouts)
        is_right = table.name in RIGHT_ON_META or table.name in COPIES
        if not (is_of_dense or is_right or table.reads_data):  # it may make sparse ones
            return self._run_on_sparse(table, given, (table.func, *layouts))
        returned = run(kernels)
        if table.name in CONSTRUCTORS:
            return construct(returned)
        if table.name in COPIES and not is_of_dense:
            return copy(given, returned)
        is_done = not is_of_dense or has_no_sparse(returned)
        return returned if is_done else self._run_for_real(table, given)

    def _run_on_sparse(self, table: OpTable, given: Given, key: object) -> Any:
        """Run an operator that takes sparse tensors; its results may be dense.

        Torch's kernels must not get sparse meta tensors: some read missing memory.
        """
        written = table.find_written(given)
        if key not in self._making and not any(map(is_sparse, written)):
            returned = ask_cpu(table.func, given.args, given.kwargs)
            if returned is not NotImplemented and has_no_sparse(returned):
                return returned
            if returned is not NotImplemented:
                self._making.add(key)
        return self._run_for_real(table, given)

    def _run_for_real(
        self, table: OpTable, given: Given, *, reads_all: bool = False
    ) -> Any:
        """Run an operator on the CPU, with the positions of its operands."""
        metas = [t for t, seen in given.inputs if seen[2].is_meta]
        if sum(map(count_nbytes, metas)) > MAX_NBYTES and not reads_all:
            raise MissingValueError(
                f"{table.name} makes a sparse tensor; how many elements it holds is "
                "not computed beside dense tensors as large as these"
            )
        real_by_id = {id(t): t for t, _ in given.inputs}
        with RealTorch():
            for tensor in metas:
                real_by_id[id(tensor)] = self._make_real(tensor, reads_all=reads_all)
        sparse = ((t, real_by_id[id(t)]) for t in metas if is_sparse(t))
        known = [Known(t, real, parts_of(real)[:-1]) for t, real in sparse]
        state = torch.default_generator.get_state()
        try:
            with RealTorch(), torch.no_grad():
                real = put_arguments_on_cpu((given.args, given.kwargs), real_by_id)
                returned = table.func(*real[0], **real[1])
        finally:
            torch.default_generator.set_state(state)
        for argument in known:  # what was written has other positions now
            if not argument.has(argument.real):
                argument.planned.data = self._build(argument.real, known)
        planned = {id(real_by_id[id(t)]): t for t, _ in given.inputs}
        return self._put_on_meta(returned, known, planned)

    def _make_real(self, tensor: Tensor, *, reads_all: bool) -> Tensor:
        if is_sparse(tensor):
            *positions, values = parts_of(tensor)
            parts = [*map(self._read, positions), make_proxy(values, has_ones=True)]
            return build_sparse(tensor, parts, is_coalesced=has_coalesced(tensor))
        is_number = tensor.is_floating_point() or tensor.is_complex()
        return make_proxy(tensor) if is_number and not reads_all else self._read(tensor)

    def _read(self, tensor: Tensor) -> Tensor:
        if not tensor.numel():
            return torch.empty_like(tensor, device="cpu")
        known = find_positions(tensor)
        if known is not None:
            return known.clone()
        try:
            (real,) = self._values.read([(tensor, self._registry.read(tensor))])
        except MissingValueError as error:
            raise type(error)(
                "how many elements a sparse tensor holds depends on the value of "
                f"another tensor {format_shape(tensor.shape)}: {error}. Give that "
                "value in Python, or use dense tensors."
            ) from error
        return real.clone()

    def _put_on_meta(
        self, value: Any, known: Sequence[Known], planned: Mapping[int, Tensor]
    ) -> Any:
        """Return the CPU's result of an operator, with its tensors on meta."""
        if isinstance(value, (list, tuple)):
            return [self._put_on_meta(item, known, planned) for item in value]
        is_new = isinstance(value, Tensor) and id(value) not in planned
        is_built = is_new and is_sparse(value)
        return self._build(value, known) if is_built else put_on_meta(value, planned)

    def _build(self, real: Tensor, known: Sequence[Known]) -> Tensor:
        *positions, values = parts_of(real)
        alike = next((argument for argument in known if argument.has(real)), None)
        known_parts = () if alike is None else parts_of(alike.planned)[:-1]
        parts = [*(known_parts or map(plan_positions, positions)), plan_part(values)]
        return build_sparse(real, parts, is_coalesced=has_coalesced(real))


def has_no_sparse(returned: Any) -> bool:
    """Whether an operator returned dense tensors alone."""
    return not any(map(is_sparse, tensors_in(returned)))


def is_sparse(tensor: Tensor) -> bool:
    """Whether a tensor holds positions, and values at them."""
    return tensor.layout in SPARSE


def construct(made: Tensor) -> Tensor:
    """Return a sparse tensor like one that was made of positions and values.

    Its values get a storage of their own, which identifies it. On the CPU they share
    the memory of the given values: a replay refuses to read one after a write of the
    other.
    """
    *positions, values = parts_of(made)
    parts = [*positions, put_on_meta(values)]
    return build_sparse(made, parts, is_coalesced=has_coalesced(made))


def copy(given: Given, made: Tensor) -> Tensor:
    """Return a copy of a sparse tensor: meta would copy no elements."""
    if not made.is_meta:
        return made
    source = given.args[0]
    *positions, values = parts_of(source)
    parts = [*positions, torch.empty_like(values, dtype=made.dtype)]
    return build_sparse(source, parts, is_coalesced=has_coalesced(source))
