"""Run the code of an answer in a child process, and give its results as plain data.

An answer may do anything: patch torch, define an ``__eq__`` that is always true, write
to the child's pipe. So its results leave the child as numbers, texts and bytes, and are
compared in this process, whose torch it cannot reach. Read :func:`run_answer` first.
"""

import ast
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from traceback import format_exception_only
from typing import IO, Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from meta_magic.children import ask_children
from meta_magic.trials.blocks import Sizes, set_sizes
from meta_magic.trials.sandbox import enter_sandbox

SECONDS: Final = 5.0
"""How much processor time an answer may take, at all sizes together."""

PATIENCE: Final = 2.0
"""Seconds on the clock that a sleeping answer may take, times the load per core."""

FILE: Final = "<answer>"
"""The file name under which an answer's code is compiled."""

LONGEST: Final = 600
"""The most characters of a text that comes from an answer, such as an error."""

KNOWN: Final = {"torch": torch, "nn": nn, "F": functional}
"""What every answer may use without an import."""

PLAIN: Final = frozenset({bool, int, float, str, type(None)})


class Exercise(NamedTuple):
    """An exercise; ``exercises.exercise`` says what each part is."""

    name: str
    given: str
    solution: str
    wants: tuple[str, ...]
    sizes: tuple[Sizes, ...] = ()
    view: bool | None = None
    hints: tuple[str, ...] = ()


class TensorResult(NamedTuple):
    """A tensor that an answer made.

    Attributes:
        kind: Its layout and device.
        is_given: Whether it is the given tensor of that name.
        values: Its elements, row by row; None where they cannot be read, as on meta.
    """

    shape: tuple[int, ...]
    dtype: str
    kind: str
    requires_grad: bool
    is_view: bool
    is_given: bool
    values: bytes | None


class OtherResult(NamedTuple):
    """A result that is neither a tensor nor plain."""

    type: str


class AnswerRun(NamedTuple):
    """How a run ended at some sizes.

    Attributes:
        results: What each wanted name holds.
        error: Of an exception, its last line.
        refusal: What the answer did that it may not do.
    """

    results: Mapping[str, Any] = {}
    error: str = ""
    refusal: str = ""


RECORDS: Final = {r.__name__: r for r in (TensorResult, OtherResult, AnswerRun)}


class RecordReader(pickle.Unpickler):
    """Reads what a child wrote; nothing in it can run code in this process."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the records of this file.

        Raises:
            pickle.UnpicklingError: It is something else, which may run code.
        """
        if module == __name__ and name in RECORDS:
            return RECORDS[name]
        raise pickle.UnpicklingError(f"an answer names {module}.{name}")


def read_records(pipe: IO[bytes]) -> Any:
    """Return what a child wrote."""
    return RecordReader(pipe).load()


def ask(functions: Iterable[Callable[[], Any]]) -> list[Any]:
    """Return the results of functions, each in a child, as ``ask_children`` does."""
    return ask_children(functions, SECONDS, PATIENCE, load=read_records)


def run_answer(
    given: str, code: str, wants: Sequence[str], sizes: Sequence[Sizes]
) -> list[AnswerRun]:
    """Return how code ran at each of some sizes, until it failed; runs in a child."""
    refused, outcomes = enter_sandbox(), []
    for at in sizes:
        try:
            names = run(given, code, at)
            found = {name: read_result(names, name) for name in wants if name in names}
            outcome = AnswerRun(found)
        except Exception as error:  # noqa: BLE001  the answer's
            outcome = AnswerRun(error=format_error(error))
        except BaseException as error:  # noqa: BLE001  a refusal, or an exit
            outcome = AnswerRun(refusal=f"raises {type(error).__name__}")
        if refused:  # also a refusal that the answer caught
            outcome = AnswerRun(refusal=refused[0])
        outcomes.append(outcome)
        if outcome.error or outcome.refusal:
            break
    return outcomes


def format_error(error: BaseException) -> str:
    """Return type and first line of an error, also of one without a text."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno} of the answer is no Python: {error.msg}"
    return format_exception_only(error)[-1].split("\n")[0][:LONGEST]


def start(given: str, sizes: Sizes) -> dict[str, Any]:
    """Return the names that an answer begins with, at some sizes."""
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "__main__"} | KNOWN
    module = set_sizes(ast.parse(given), sizes)
    exec(compile(module, "<given>", "exec"), names)  # noqa: S102  the exercise
    return names


def run(given: str, code: str, sizes: Sizes) -> dict[str, Any]:
    """Return the names that the given code and an answer make, at some sizes."""
    names = start(given, sizes)
    names["__given__"] = {k: v for k, v in names.items() if isinstance(v, Tensor)}
    exec(compile(code, FILE, "exec"), names)  # noqa: S102  the answer
    return names


def read_result(names: Mapping[str, Any], name: str) -> Any:
    """Return a result of an answer as plain data."""
    given = names["__given__"]

    def read(value: Any) -> Any:
        if type(value) in PLAIN:
            return value
        if isinstance(value, Tensor):
            plain = Tensor.as_subclass(value, Tensor)  # no shape of its own class
            return read_tensor(plain, given, is_given=value is given.get(name))
        if type(value) in {tuple, torch.Size}:
            return tuple(map(read, value))
        if type(value) is list:
            return [*map(read, value)]
        return OtherResult(type(value).__name__[:LONGEST])

    return read(names[name])


def read_tensor(
    tensor: Tensor, given: Mapping[str, Tensor], *, is_given: bool
) -> TensorResult:
    """Return a tensor as plain data."""
    values, is_view = None, False
    with suppress(Exception):  # on meta, or sparse
        pointer = tensor.untyped_storage().data_ptr()
        is_view = pointer in {t.untyped_storage().data_ptr() for t in given.values()}
        rows = tensor.detach().resolve_conj().resolve_neg().contiguous().flatten()
        values = rows.view(torch.uint8).numpy().tobytes()
    return TensorResult(
        tuple(map(int, tensor.shape)),
        str(tensor.dtype),
        f"{tensor.layout} on {tensor.device}",
        bool(tensor.requires_grad),
        is_view,
        is_given,
        values,
    )


def read_values(result: TensorResult) -> Tensor:
    """Return the elements of a tensor, wide enough to compare them.

    Raises:
        Exception: Any; the record is not what this file wrote.
    """
    dtype = getattr(torch, result.dtype.removeprefix("torch."))
    data = bytearray(result.values or b"")
    narrow = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return narrow.to(wide).view(result.shape)
