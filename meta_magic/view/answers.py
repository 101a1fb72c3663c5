"""Answer questions of the report in the browser: values, and where a size comes from.

A click on a tensor asks for its numbers; a click on a size asks for its lineage. Each
answer is computed in a thread. Read :func:`answers_of` first.
"""

import threading
import weakref
from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

from meta_magic.errors import MetaMagicError
from meta_magic.replaying.evaluator import Evaluator
from meta_magic.replaying.value_budget import ValueBudget
from meta_magic.session.collector import RARE_COLLECTION
from meta_magic.trace.options import LIMITS
from meta_magic.trace.program import HEADER, Program
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_shape
from meta_magic.view.source_payload import lineage_payload

if TYPE_CHECKING:
    from meta_magic.view.sliders import Designs

T = TypeVar("T")

Send: TypeAlias = Callable[..., object]
"""Sends an answer to the browser, and after it a list of what is no JSON, if any."""


class Answers(Generic[T]):
    """Answers one kind of questions, one after the other."""

    def __init__(
        self,
        kind: str,
        find: Callable[[], T | None],
        answer: Callable[[T, Mapping[str, Any]], dict[str, Any]],
    ) -> None:
        self._kind = kind
        self._find: Callable[[], T | None] = find
        self._answer = answer
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Release the recording."""
        self._find = lambda: None

    def receive(self, content: Mapping[str, Any], send: Send) -> None:
        """Begin to answer a message, if it is of this kind."""
        if content.get("kind") == self._kind:
            self.answer(content, send)

    def answer(self, asked: Mapping[str, Any], send: Send) -> None:
        """Begin to answer a question; the answer has its ``id``."""
        threading.Thread(
            target=self._run,
            args=(asked, send),
            name=f"meta_magic {self._kind}",
            daemon=True,
        ).start()

    def _run(self, asked: Mapping[str, Any], send: Send) -> None:
        """Compute and send an answer; no error may leave this thread."""
        answer: dict[str, Any] = {"error": FORGOTTEN}
        with self._lock:
            found = self._find()
            try:
                if found is not None:
                    answer = self._answer(found, asked)
            except MetaMagicError as error:
                answer = {"error": str(error)}
            except BaseException as error:  # noqa: BLE001  the user's own code may run
                answer = {"error": f"{type(error).__name__}: {error}"}
        sent = [answer.pop("buffers")] if "buffers" in answer else []
        send({"kind": self._kind, "id": asked["id"], **answer}, *sent)


FORGOTTEN: Final = (
    "the recording is gone: it holds real tensors, and so the report does not keep it; "
    "name it by %%meta -o NAME"
)


def make_reference(program: Program, record: T) -> Callable[[], T | None]:
    """Return a function that returns a record of a program, or None when it is gone.

    The reference is weak if the program holds a real tensor of the user, which the
    report must not keep in memory.
    """
    if all(constant.tensor is None for constant in program.constants):
        return lambda: record
    return weakref.ref(record)


MAX_NUMEL: Final = 100_000
N_BINS: Final = 30
N_FIRST: Final = 10


def values_of(program: Program) -> Answers[Program]:
    """Return the answers to: which values has the tensor at ``slot`` of ``op``?"""
    return Answers(
        "values",
        make_reference(program, program),
        lambda program, asked: describe_values(program, asked["op"], asked["slot"]),
    )


def describe_values(program: Program, op: int, slot: int) -> dict[str, Any]:
    """Return a tensor's values: ``facts``, ``first`` and ``bins``; or ``error``."""
    records = program.with_raised
    row = memoryview(records.words).cast("I")[records.offsets[op] :]
    signature = records.signatures[row[0]]
    geometry = (*signature.inputs, *signature.outputs)[slot]
    storage = memoryview(records.storage_by_tensor).cast("I")[row[HEADER + slot]]
    if geometry.layout is not torch.strided:
        return {"error": f"its layout is {geometry.layout}"}
    if prod(geometry.shape) > MAX_NUMEL:
        shape = format_shape(geometry.shape)
        return {"error": f"{shape} has more than {MAX_NUMEL:,} elements"}
    wanted = [(storage, geometry)]
    try:
        found, _ = Evaluator(is_private=True).evaluate(
            program, wanted, ValueBudget(LIMITS), can_assume=False
        )
    except MetaMagicError as error:
        return {"error": str(error)}
    return describe_tensor(found[0])


def describe_tensor(tensor: Tensor) -> dict[str, Any]:
    """Return facts and a histogram of a real tensor; of complex ones by ``abs``."""
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    first = ", ".join(format_number(value) for value in flat[:N_FIRST].tolist())
    more = ", …" if flat.numel() > N_FIRST else ""
    numbers = (flat.abs() if flat.is_complex() else flat).double()
    finite = numbers[numbers.isfinite()]
    facts = [("of", "absolute values")] if flat.is_complex() else []
    bins = {}
    if finite.numel():
        is_whole = not (flat.is_floating_point() or flat.is_complex())
        # Integers are exact: they are often indices, and float64 would round them.
        known = [*map(int, flat.tolist())] if is_whole else finite.tolist()
        low, high = format_number(min(known)), format_number(max(known))
        facts += [
            ("min", low),
            ("max", high),
            ("mean", format_number(finite.mean().item())),
            ("std", format_number(finite.std(correction=0).item())),
            ("zeros", f"{(finite == 0).double().mean().item():.1%}"),
        ]
        counts = torch.histc(finite, N_BINS, finite.min().item(), finite.max().item())
        bins = {"counts": counts.int().tolist(), "low": low, "high": high}
    facts += [
        (name, f"{count:,}")
        for name, found in (("nan", numbers.isnan()), ("inf", numbers.isinf()))
        if (count := int(found.sum()))
    ]
    described = {"facts": facts, "first": first + more}
    return described | {"bins": bins} if finite.numel() > 1 else described


def format_number(value: complex) -> str:
    """Return a number as short text."""
    return str(value) if isinstance(value, (bool, int)) else f"{value:.4g}"


def answers_of(
    trace: Trace, designs: "Designs | None" = None
) -> tuple[Answers[Any], ...]:
    """Return the answers about a recording, by the kind of question.

    ``why`` asks about dimension ``dim`` of the tensor at ``slot`` of ``op``; ``check``
    for which values of ``name`` the block runs; ``vary`` about other numbers in the
    code, of which ``designs`` may know some.
    """
    find = make_reference(trace.program, trace)

    def answer_varied(trace: Trace, asked: Mapping[str, Any]) -> dict[str, Any]:
        nonlocal designs
        if designs is None:
            from meta_magic.view.sliders import Designs  # noqa: PLC0415  few ask

            designs = Designs()
        RARE_COLLECTION.wait()
        return designs.answer(trace, asked)

    return (
        values_of(trace.program),
        Answers("why", find, answer_why),
        Answers("check", find, answer_check),
        Answers("vary", find, answer_varied),
    )


def answer_why(trace: Trace, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lineage of a size."""
    RARE_COLLECTION.wait()
    call = trace.ops[asked["op"]]
    tensor = (*call.inputs, *call.outputs)[asked["slot"]]
    return lineage_payload(trace.why(tensor, asked["dim"]))


def answer_check(trace: Trace, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return for which values of a name the block runs, as text."""
    RARE_COLLECTION.wait()
    return {"text": str(trace.check(asked["name"]))}
