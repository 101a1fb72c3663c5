"""Find the operator that a row names, and how its calls use their tensors.

:class:`Operator` calls it, :class:`CallArguments` has the arguments that all calls of a
signature share, and :class:`Usage` says which tensors these calls read and overwrite.
Without :class:`Usage`, ``x.zero_()`` would replay everything that ``x`` held before.
Read :func:`find_operator` first.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from itertools import takewhile
from math import prod
from typing import Any, Final

import torch
from torch import Generator, Tensor

from meta_magic.errors import ReplayError
from meta_magic.recording.intercept.reported_devices import INITIALIZERS
from meta_magic.recording.signatures.entries import find_overwritten
from meta_magic.replaying.collectives import call_collective
from meta_magic.torch_private.dispatcher import OpOverload, kernel_of, schema_of
from meta_magic.torch_private.distributed import uses_group
from meta_magic.trace.formulas.call_costs import count_flops
from meta_magic.trace.signature import (
    EMPTY,
    NAN,
    NEGATIVE_NAN,
    SHAPE_ONLY,
    Argument,
    Geometry,
    OpaqueArgument,
    Signature,
    TensorArgument,
    short_name,
    span_nbytes,
)


class CallArguments:
    """The arguments of all calls of one signature; :meth:`fill` adds the tensors."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.default_dtype = find_default_dtype(signature)
        self._plain: dict[str, Any] = {}
        self._tensors: list[tuple[str, int]] = []
        self._others: list[tuple[str, Argument]] = []
        given = dict(signature.arguments)
        given.pop("generator", None)  # Streams chooses the generator
        for name, value in given.items():
            if isinstance(value, TensorArgument):
                self._tensors.append((name, value.index))
            elif isinstance(value, (tuple, torch.device, OpaqueArgument)):
                self._others.append((name, value))
            else:
                self._plain[name] = value

    def fill(self, tensors: Sequence[Tensor], device: torch.device) -> dict[str, Any]:
        """Return the keyword arguments of one call."""
        given = self._plain.copy()
        for name, index in self._tensors:
            given[name] = tensors[index]
        for name, value in self._others:
            given[name] = self._fill(name, value, tensors, device)
        return given

    def _fill(
        self,
        name: str,
        value: Argument,
        tensors: Sequence[Tensor],
        device: torch.device,
    ) -> Any:
        if isinstance(value, TensorArgument):
            return tensors[value.index]
        if isinstance(value, tuple):
            return [self._fill(name, item, tensors, device) for item in value]
        if isinstance(value, torch.device) and value.type == "meta":
            return device
        if value in (NAN, NEGATIVE_NAN):
            return math.nan if value == NAN else -math.nan
        if isinstance(value, OpaqueArgument):
            if uses_group(self.signature.op):
                return value  # call_collective finds the group
            raise ReplayError(
                f"{self.signature.op} was called with {name}={value.text}: the "
                "recording keeps only this text of the argument"
            )
        return value


def find_default_dtype(signature: Signature) -> torch.dtype | None:
    """Return torch's default dtype at a call where it matters: ``torch.ones(2)``."""
    floating = [g.dtype for g in signature.inputs if _is_floating(g.dtype)]
    made = [g.dtype for g in signature.outputs if _is_floating(g.dtype)]
    given: Mapping[str, Argument] = dict(signature.arguments)
    if floating or not made or given.get("dtype") is not None:
        return None
    return made[0].to_real()


def _is_floating(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def aten_names(text: str) -> frozenset[str]:
    """Return the names in a text, each with its namespace ``aten``."""
    return frozenset(f"aten.{name}" for name in text.split())


FILLS_ALL: Final = aten_names("_foreach_copy_.default _foreach_zero_.default")
"""Operators that overwrite each tensor of their first argument without reading it."""

FILLS: Final = aten_names(
    "normal_.default uniform_.default random_.default random_.from random_.to "
    "exponential_.default log_normal_.default cauchy_.default geometric_.default "
    "bernoulli_.float zero_.default fill_.Scalar"
)
"""Operators that overwrite their tensor and read nothing."""

COPIES: Final = frozenset({"aten.copy_.default", "aten.fill_.Tensor"})
"""Operators that overwrite their first tensor and read only the second."""

SPLIT: Final = frozenset({"aten.uniform_.default", "aten.normal_.default"})
"""Operators that the CPU runs element by element, or in groups of 16 elements."""

DRAWN: Final[dict[str, Callable[..., Any]]] = {
    "aten.rand.default": Tensor.uniform_,
    "aten.rand.generator": Tensor.uniform_,
    "aten.randn.default": Tensor.normal_,
    "aten.randn.generator": Tensor.normal_,
}
"""Factories that draw like one of these, and the method that fills a part alike."""

SETTING: Final = frozenset(
    {"aten.set_.source_Storage", "aten.set_.source_Storage_storage_offset"}
)
"""Operators that give a tensor another storage; it is no recorded argument."""

BY_SHAPE: Final = aten_names(
    "bernoulli.default bernoulli.p bernoulli_.Tensor native_dropout.default "
    "multinomial.default normal.Tensor_float normal.float_Tensor normal.Tensor_Tensor"
)
"""Operators that draw equally many numbers for all valid values of their tensors."""

N_TRAINED: Final = {"aten.mkldnn_rnn_layer.default": 4}
"""Operators that return so many tensors with gradients, and fewer without."""

KEEPING: Final = aten_names(
    "empty.out empty_like.out empty_permuted.out empty_strided.out new_empty.out "
    "new_empty_strided.out native_batch_norm.out"
)
"""Operators that may leave the old values in ``out=``."""

GARBLING: Final = aten_names(
    "addmm.out mm.out std.correction_out std.out var.correction_out var.out"
)
"""Operators that compute garbage if ``out=`` is also an input and is resized."""

GARBLING_IF_GROWN: Final = frozenset({"aten.histc.out"})
"""Operators that read the uninitialized end of ``out=``, only if ``out=`` grows."""

PARTLY_WRITTEN: Final = {"fsdp.all_gather_copy_in.default": "all_gather_output"}
"""By operator, the argument that it writes only where its first result views it."""

READING: Final = frozenset({"aten.from_file.default"})
"""Operators that read something outside of the recording."""


class Operator:
    """An operator that a program calls.

    Attributes:
        is_fill: Whether it overwrites its first tensor without reading it.
        is_empty: Whether its new outputs are uninitialized.
        reads_metadata: Whether it reads only the metadata of its tensors.
        is_builtin: Whether it is torch's own: its tags then say whether it draws.
        lays_out_anew: Whether it may change the shape or strides of its arguments.
        can_split: Whether the CPU draws the same numbers part by part.
        draws_by_shape: Whether it draws equally many numbers for all valid values.
        draws_blindly: Whether the count of its draws depends on no tensor's values.
        unread: Indices of the tensors of which it reads only the metadata.
        partly_written: Name of the argument of which it writes the part that its first
            result views, and reads nothing; None for none.
    """

    def __init__(
        self, name: str, function: Any, run: Callable[..., Any] | None = None
    ) -> None:
        initializer = INITIALIZERS.get(name)
        self.name = name
        self.is_fill = name in FILLS or name in COPIES or initializer is not None
        self.is_setting = name in SETTING
        short, overload = short_name(name), name.rpartition(".")[2]
        is_new = name.startswith("aten.") and "out" not in overload
        self.is_empty = self.is_setting or (is_new and short in EMPTY)
        self.unread: frozenset[int] = frozenset()
        self.partly_written = PARTLY_WRITTEN.get(name)
        takes_numbers = is_new and "Tensor" not in overload
        self.reads_metadata = takes_numbers and short in SHAPE_ONLY
        self.can_split = name in SPLIT or name in DRAWN
        self.is_random = torch.Tag.nondeterministic_seeded in function.tags
        self.is_builtin = name.startswith(("aten.", "prims.", "nn.init."))
        self._names = [argument.name for argument in schema_of(function).arguments]
        self.out = find_overwritten(name, self._names).union(
            a.name
            for a in schema_of(function).arguments
            if a.kwarg_only and a.alias_info is not None and a.alias_info.is_write
        )
        self.lays_out_anew = (
            torch.Tag.inplace_view in function.tags
            or bool(self.out)
            or not self.is_builtin
        )
        if name in FILLS_ALL:
            self.out |= {"self"}
        self._n_trained = N_TRAINED.get(name, sys.maxsize)
        tensors = [a for a in schema_of(function).arguments if "Tensor" in str(a.type)]
        self.draws_by_shape = name in BY_SHAPE
        self.draws_blindly = (
            self.is_fill or self.draws_by_shape or self.reads_metadata or not tensors
        )
        made = getattr(initializer, "function", function)
        self._call: Callable[..., Any] = run or made
        # It draws twice, and hands the generator to one of the two draws only.
        self._takes_generator = name != "nn.init.sparse_"
        has_generator = "generator" in self._names
        self._call_with = function if has_generator else find_variant(function)
        if initializer is not None:
            self._call_with = self._call if has_generator else None

    @property
    def function(self) -> OpOverload | None:
        """Torch's operator; None if another function is called instead."""
        return self._call if isinstance(self._call, OpOverload) else None

    def call(
        self,
        arguments: CallArguments,
        tensors: Sequence[Tensor],
        device: torch.device,
        generator: Generator | None,
    ) -> Any:
        """Call the operator; a random factory gets a tensor to draw into."""
        if tensors and self.name in DRAWN:
            return DRAWN[self.name](tensors[0], generator=generator)
        given = arguments.fill(tensors, device)
        default = torch.get_default_dtype()
        wanted = arguments.default_dtype or default
        if wanted != default:
            torch.set_default_dtype(wanted)
        try:
            if generator is None:
                if len(arguments.signature.outputs) < self._n_trained:
                    return self._call(**given)
                with torch.enable_grad():
                    return self._call(**given)
            if self._call_with is not None and self._takes_generator:
                return self._call_with(**given, generator=generator)
            return call_on_default(generator, lambda: self._call(**given))
        finally:
            if wanted != default:
                torch.set_default_dtype(default)


@lru_cache(maxsize=4096)
def find_operator(name: str) -> Operator:
    """Return the operator of a name such as ``aten.addmm.default``."""
    initializer = INITIALIZERS.get(name)
    if initializer is not None:
        return Operator(name, initializer)
    if name in READING:
        raise ReplayError(f"{name} reads a file, which may be another one by now")
    if name.startswith("higher_order."):
        raise ReplayError(f"{name} takes functions, which a recording does not keep")
    function = find_function(name)
    is_collective = uses_group(name)
    run = partial(call_collective, function) if is_collective else None
    return Operator(name, function, run)


def find_function(name: str) -> Any:
    """Return torch's operator of a name."""
    try:
        namespace, packet, overload = name.rsplit(".", maxsplit=2)
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    except (AttributeError, ValueError):
        raise ReplayError(
            f"the operator {name} is not registered in this process: import the "
            "package that defines it"
        ) from None


def find_variant(function: Any) -> Callable[..., Any] | None:
    """Return the overload that takes the same arguments and a generator, if any."""
    packet = getattr(function, "overloadpacket", None)
    wanted = {"generator", *(a.name for a in schema_of(function).arguments)}
    for name in () if packet is None else packet.overloads():
        overload = getattr(packet, name)
        if {a.name for a in schema_of(overload).arguments} == wanted:
            return overload  # type: ignore[no-any-return]  # torch's packets have no types
    return None


def call_on_default(generator: Generator, call: Callable[[], Any]) -> Any:
    """Call a function that draws only from torch's default generator."""
    default = default_generator(generator.device)
    saved = default.get_state()
    default.set_state(generator.get_state())
    try:
        return call()
    finally:
        generator.set_state(default.get_state())
        default.set_state(saved)


def default_generator(device: torch.device) -> Generator:
    """Return the generator that torch draws from on ``device`` by default."""
    if device.type == "cpu":
        return torch.default_generator
    return torch.cuda.default_generators[device.index]


class Usage:
    """Which tensor arguments the calls of one signature read and write.

    Attributes:
        overwritten: Indices of the arguments that are overwritten and not read.
        garbled: Indices of the ``out=`` arguments that the operator resizes, and would
            compute garbage from.
    """

    def __init__(self, signature: Signature, operator: Operator) -> None:
        self.signature = signature
        self.operator = operator
        self.overwritten = _find_overwritten(signature, operator)
        partly = [v for n, v in signature.arguments if n == operator.partly_written]
        skipped = self.overwritten | operator.unread | {*list_indices(partly)}
        n_read = 0 if operator.reads_metadata else len(signature.inputs)
        self.read = tuple(index for index in range(n_read) if index not in skipped)
        after = signature.outputs[0].shape if signature.outputs else ()
        before = {index: signature.inputs[index].shape for index in self.overwritten}
        self.garbled = {
            index
            for index, shape in before.items()
            if (operator.name in GARBLING and after != shape)
            or (operator.name in GARBLING_IF_GROWN and prod(after) > prod(shape))
        }
        self._nbytes_by_dense = {
            index: span_nbytes(geometry)
            for index in self.overwritten
            if is_dense(geometry := geometry_after(signature, index))
        }

    @cached_property
    def arguments(self) -> CallArguments:
        """The arguments of a call."""
        return CallArguments(self.signature)

    @cached_property
    def work(self) -> int:
        """The FLOPs of a call, or how many elements it makes and writes."""
        written = [self.signature.inputs[i] for i in self.signature.writes]
        n_elements = sum(prod(g.shape) for g in (*self.signature.outputs, *written))
        return count_flops(self.signature) or n_elements

    @cached_property
    def _kernel(self) -> tuple[Any, list[Any], dict[str, Any]] | None:
        """Torch's kernel, and its arguments after the tensors, if all are plain."""
        operator, given = self.operator, self.signature.arguments
        n_tensors, function = len(self.signature.inputs), operator.function
        tensors = [TensorArgument(i) for i in range(n_tensors)]
        rest = [value for _, value in given[n_tensors:]]
        if (
            function is None
            or type(operator).call is not Operator.call
            or operator.name in N_TRAINED
            or operator.is_random
            or self.arguments.default_dtype is not None
            or [value for _, value in given[:n_tensors]] != tensors
            or not all(map(_is_plain, rest))
        ):
            return None
        names = [a.name for a in schema_of(function).arguments if not a.kwarg_only]
        pairs = zip(given, names, strict=False)
        n_positional = sum(1 for _ in takewhile(lambda p: p[0][0] == p[1], pairs))
        listed = [[*v] if isinstance(v, tuple) else v for v in rest]
        positional = listed[: max(0, n_positional - n_tensors)]
        named = [name for name, _ in given[n_tensors + len(positional) :]]
        if n_positional < n_tensors:
            return None
        return (
            kernel_of(function),
            positional,
            dict(zip(named, listed[len(positional) :], strict=True)),
        )

    def run(
        self,
        tensors: Sequence[Tensor],
        device: torch.device,
        generator: Generator | None,
    ) -> Any:
        """Call the operator: its kernel at once if possible, else as its class says."""
        if self._kernel is None:
            return self.operator.call(self.arguments, tensors, device, generator)
        function, positional, named = self._kernel
        return function(*tensors, *positional, **named)

    def fills(self, index: int, nbytes: int) -> bool:
        """Whether overwriting an argument overwrites a storage of so many bytes."""
        return self._nbytes_by_dense.get(index) == nbytes


def _is_plain(value: object) -> bool:
    """Whether an argument is a plain value, or a list of numbers."""
    if isinstance(value, tuple):
        return all(type(item) in (int, float, bool) for item in value)
    return not isinstance(value, (TensorArgument, OpaqueArgument, torch.device))


def _find_overwritten(signature: Signature, operator: Operator) -> frozenset[int]:
    if operator.is_fill:
        return frozenset({0})
    if operator.name in KEEPING:
        return frozenset()
    out = [value for name, value in signature.arguments if name in operator.out]
    return frozenset({*list_indices(out)} & {*signature.writes})


def list_indices(value: object) -> Iterator[int]:
    """Yield the indices of the tensors in an argument, which may be nested lists."""
    if isinstance(value, TensorArgument):
        yield value.index
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from list_indices(item)


def geometry_after(signature: Signature, index: int) -> Geometry:
    """Return the geometry of an argument after a call, which may resize ``out=``."""
    before = signature.inputs[index]
    pairs = zip(signature.views, signature.outputs, strict=True)
    # Several results may be arguments on one storage; the first one counts.
    after = [geometry for argument, geometry in pairs if argument == index]
    return before if not after or before in after else after[-1]


def is_dense(geometry: Geometry) -> bool:
    """Whether elements fill the start of a storage without gaps or overlaps."""
    if geometry.stride is None:
        return False
    wanted = 1
    pairs = zip(geometry.stride, geometry.shape, strict=True)
    for step, size in sorted(pair for pair in pairs if pair[1] != 1):
        if step != wanted:
            return False
        wanted *= size
    return geometry.storage_offset == 0
