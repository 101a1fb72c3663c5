"""The oracle: ask the CPU's own operator whether it refuses a call, and how.

Only what metadata decides is an answer. A small call runs with zeros, ones and other
values, and is refused if all of them are refused. A large call is asked at its true
sizes, on memory that nobody touches, in a child process: torch refuses before it
computes. Read ``Oracle.ask`` first, then ``OracleQuestion.ask``.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # public
from torch.nn.parameter import Parameter, is_lazy

from meta_magic.children import NO_ANSWER, can_fork, run_in_child
from meta_magic.recording.as_device.oracle.proxy_tensors import (
    ACCEPTED,
    FILLINGS,
    MAX_NUMEL,
    UNRESERVED,
    ProxyTensors,
    Unaskable,
    is_small,
    measure_spans,
    put_on_cpu,
    shrink,
    take_one,
)
from meta_magic.recording.identities.tensors import rebuild, tensors_in
from meta_magic.recording.signatures.entries import Args, Kwargs
from meta_magic.torch_private.dispatcher import find_schema
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction

MAX_SHARE: Final = 0.25
MAX_SHARE_UNSAFE: Final = 0.5
MIN_SECONDS: Final = 1.0
"""The processor time for asking: ``MIN_SECONDS``, or a share of the recording. The
share is larger for calls that meta refuses, as without an answer a valid program might
end."""

UNRESIZABLE: Final = "resize storage that is not resizable"
"""The error of torch where it would grow memory that nobody touches."""

MAX_NBYTES: Final = 16 * MAX_NUMEL
"""Limit on the storages of a small call: few elements may span a large storage."""

RANDOM: Final = torch.Tag.nondeterministic_seeded
LINALG_CHECK: Final = "aten._linalg_check_errors.default"


class Verdict(Enum):
    """The answer about a call that is not known to be refused."""

    ACCEPTED = "accepted"
    UNKNOWN = "unknown"
    UNASKED = "unasked"


Answer: TypeAlias = Exception | Verdict


class Oracle:
    """Asks the CPU, within a share of the processor time of the recording.

    Attributes:
        returned: The CPU's result of the last call, if that ran in this process with
            proxies of its true sizes.
    """

    def __init__(self, *, is_patient: bool = False) -> None:
        self.returned: Any = None
        self._is_patient = is_patient
        self._started = self._read_clock()
        self._seconds = 0.0

    def ask(
        self,
        func: Callable[..., Any],
        args: Args,
        kwargs: Kwargs,
        made: Sequence[Tensor] = (),
        *,
        is_unsafe: bool = False,
    ) -> Answer:
        """Return the error of the CPU if metadata decides it; else a verdict."""
        self.returned = None
        tensors = tensors_in(args, kwargs)
        if not all(map(is_plain, tensors)):
            return Verdict.UNKNOWN
        started, is_on = self._read_clock(), torch.is_grad_enabled()
        share = MAX_SHARE_UNSAFE if is_unsafe else MAX_SHARE
        if self._seconds > max(MIN_SECONDS, (started - self._started) * share):
            return Verdict.UNASKED
        try:
            question = OracleQuestion(func, args, kwargs, tensors)
            with (
                DisableTorchDispatch(),
                DisableTorchFunction(),
                torch.set_grad_enabled(question.is_of_function and is_on),
                same_draws(func),
            ):
                answer = question.ask([*tensors, *made], is_unsafe=is_unsafe)
            self.returned = question.returned
        except (Unaskable, OSError):
            return Verdict.UNKNOWN
        finally:
            self._seconds += self._read_clock() - started
        return answer

    def _read_clock(self) -> float:
        return 0.0 if self._is_patient else processor_seconds()


def processor_seconds() -> float:
    """Return the processor time of this thread and of the children that have ended.

    On a busy machine it is the same as on a quiet one, so what is asked is, too.
    """
    times = os.times()
    return time.thread_time() + times.children_user + times.children_system


class OracleQuestion:
    """One call that the CPU is asked about."""

    def __init__(
        self,
        func: Callable[..., Any],
        args: Args,
        kwargs: Kwargs,
        tensors: Sequence[Tensor],
    ) -> None:
        self._func = func
        # Pinned memory needs an accelerator, and does not change the answer.
        self._call = args, {n: v for n, v in kwargs.items() if n != "pin_memory"}
        self._tensors = tensors
        self._spans = measure_spans(tensors)
        self.returned: Any = None
        self.is_of_function = find_schema(func) is None
        self._make_proxies = partial(
            ProxyTensors, self._spans, has_gradients=self.is_of_function
        )

    def ask(self, seen: Sequence[Tensor], *, is_unsafe: bool) -> Answer:
        """Return the error of the CPU, or a verdict."""
        if any(tensor.is_nested for tensor in seen):  # their shapes are not known
            return Verdict.UNKNOWN
        if is_view(self._func) and not is_unsafe:  # it computes nothing
            return decide(self._run_untouched)
        is_held = sum(self._spans.values()) <= MAX_NBYTES
        if is_held and is_small([tensor.shape for tensor in seen]):
            run = self._run_small_or_raise
            return self._confirm(run, is_tried=True) if is_unsafe else self._run_small()
        if not self._tensors:
            return self._ask_for_one()
        if is_unsafe:
            return self._confirm(self._run_untouched)
        return self._ask_of_smaller()

    def _ask_for_one(self) -> Answer:
        """Return the error of a factory, if it also refuses to make one element."""
        smaller = take_one(self._call)
        if smaller == self._call:  # no sizes among the arguments: it may make much
            return Verdict.UNKNOWN
        args, kwargs = (rebuild(given, put_on_cpu) for given in smaller)
        answer = decide(partial(self._func, *args, **kwargs))
        is_taken = isinstance(answer, Verdict)
        return answer if is_taken else self._confirm(self._run_untouched)

    def _ask_of_smaller(self) -> Answer:
        """Return the error at the true sizes, if a smaller call is refused."""
        smaller = shrink(self._func, self._call, self._tensors)
        if smaller is None:
            return Verdict.UNKNOWN
        described = smaller.describe(self._func)
        if described in ACCEPTED:
            return Verdict.ACCEPTED
        for filling in FILLINGS:
            args, kwargs = smaller.build("cpu", filling)
            answer = decide(partial(self._func, *args, **kwargs))
            if answer is Verdict.ACCEPTED:
                ACCEPTED.add(described)
            if isinstance(answer, Verdict):
                return answer
        return self._confirm(self._run_untouched)

    def _run_small(self) -> Answer:
        """Return the error that all values give."""
        answers = []
        for filling in FILLINGS:
            proxies = self._make_proxies(filling)
            answer = decide(lambda: self._run_with(proxies), is_tried=True)  # noqa: B023  called at once
            if isinstance(answer, Verdict):
                return answer
            if OF_TYPES.search(str(answer)) and not mentions_values(answer):
                return answer  # it refuses types, whatever the values
            answers.append(answer)
        is_one = len(set(map(str, answers))) == 1  # different errors depend on values
        return answers[0] if is_one else Verdict.UNKNOWN

    def _run_small_or_raise(self) -> None:
        answer = self._run_small()
        if isinstance(answer, Exception):
            raise answer

    def _run_untouched(self) -> None:
        try:
            self._run_with(self._make_proxies(is_untouched=True))
        except RuntimeError as error:
            if UNRESIZABLE not in str(error):
                raise
            self._run_with(self._make_proxies())

    def _confirm(self, run: Callable[[], object], *, is_tried: bool = False) -> Answer:
        """Return the error in a child process, if there can be one."""
        has_child = can_fork() and UNRESERVED is not None
        raised = run_in_child(run) if has_child else NO_ANSWER
        is_known = raised is not NO_ANSWER
        return judge(raised, is_tried=is_tried) if is_known else Verdict.UNKNOWN

    def _run_with(self, proxies: ProxyTensors) -> None:
        args, kwargs = self._call

        def replace(value: Any) -> Any:
            is_tensor = isinstance(value, Tensor)
            return proxies.make(value) if is_tensor else put_on_cpu(value)

        try:
            args, kwargs = rebuild(args, replace), rebuild(kwargs, replace)
        except Exception as error:  # not an error of the operator
            raise Unaskable from error
        self.returned = self._func(*args, **kwargs)


def decide(run: Callable[[], object], *, is_tried: bool = False) -> Answer:
    """Return the error of a function, if other values would give it as well."""
    return judge(run_here(run), is_tried=is_tried)


def judge(raised: Exception | None, *, is_tried: bool) -> Answer:
    """Return an error, if metadata alone decided it."""
    if raised is None:
        return Verdict.ACCEPTED
    is_of_values = mentions_values(raised, is_tried=is_tried)
    return Verdict.UNKNOWN if is_of_values else raised


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor can have a proxy."""
    kind = type(tensor)
    is_own = kind.__torch_dispatch__ is not Tensor.__torch_dispatch__
    if kind not in {Tensor, Parameter} and (is_own or is_lazy(tensor)):
        return False
    is_here = tensor.is_meta or tensor.is_cpu
    return is_here and tensor.layout is torch.strided and not tensor.is_quantized


def is_view(func: Any) -> bool:
    """Whether an operator only returns views of its arguments."""
    schema = find_schema(func)
    if schema is None or schema.is_mutable:
        return False
    return any(returned.alias_info for returned in schema.returns)


@contextmanager
def same_draws(operator: Any) -> Iterator[None]:
    """Restore the generator after a random operator was asked."""
    if RANDOM not in getattr(operator, "tags", ()):
        yield
        return
    state = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


# With known values


def ask_of_values(
    func: Callable[..., Any],
    args: Args,
    kwargs: Kwargs,
    real_by_id: Mapping[int, Tensor],
) -> Answer:
    """Return the error of the CPU for a call, some of whose values are known.

    At its true sizes, and in a child process if there can be one: a kernel may trust
    values that are wrong.
    """
    has_child = can_fork() and UNRESERVED is not None
    given = tensors_in(args, kwargs)
    tensors = [tensor for tensor in given if tensor.is_meta or not has_child]
    is_small_or_apart = has_child or is_small([tensor.shape for tensor in tensors])
    if not is_small_or_apart or not all(map(is_plain, tensors)):
        return Verdict.UNKNOWN
    proxies = ProxyTensors(measure_spans(tensors), is_untouched=has_child)

    def replace(value: Any) -> Any:
        if id(value) in real_by_id:
            return real_by_id[id(value)]
        is_on_meta = isinstance(value, Tensor) and value.is_meta
        return proxies.make(value) if is_on_meta else put_on_cpu(value)

    def run() -> None:
        func(*rebuild(args, replace), **rebuild(kwargs, replace))

    with DisableTorchDispatch(), DisableTorchFunction(), torch.no_grad():
        try:
            raised = run_in_child(run) if has_child else run_here(run)
        except (Unaskable, OSError):
            return Verdict.UNKNOWN
    if raised is NO_ANSWER:
        return Verdict.UNKNOWN
    if str(func) == LINALG_CHECK and isinstance(raised, RuntimeError):
        # torch.ops loses the class of an error of torch.linalg.
        is_of_lu = str(raised).startswith("torch.linalg.lu_factor")
        return raised if is_of_lu else LinAlgError(str(raised))
    return Verdict.ACCEPTED if raised is None else raised


def run_here(run: Callable[[], object]) -> Exception | None:
    """Run a function in this process; return its error."""
    try:
        run()
    except Unaskable:
        raise
    except Exception as error:  # noqa: BLE001  it is the answer
        return error.with_traceback(None)  # it would keep meta tensors alive
    return None


# Which errors are about values, and not about metadata

OF_VALUES: Final = re.compile(
    r"index out of range in self|target -?\d+ is out of bounds|"
    r"out of bounds for dimension \d+ with size|index -?\d+ is out of|"
    r"can't allocate|not enough memory|singular|converge|"
    r"positive-definite|pivots [^.]*between|internal assert|u\[|"
    r"probability tensor|probabilities|offsets\[|sum to|class values must|"
    r"all elements of (input|target)",
    re.IGNORECASE,
)
"""Errors that only values, or the memory of this machine, can cause."""

OF_MASKS: Final = re.compile("indexing result of shape|indexing tensors could not")
"""Errors that may be about the number of elements that a mask selects."""

LIKE_VALUES: Final = re.compile(
    r"out of range|out of bounds|not positive|non-?negative|negative|\binf\b|nan\b|"
    r"must be (in|between|>|<)|between|monoton|sum of|offsets|lengths|"
    r"expected to be sorted|number of (non-?zero|true)|rank|ill-condition|illegal|"
    r"division by zero|diagonal|numerator|infinite|indptr|invariant|"
    r"could not run|max must|min and max",
    re.IGNORECASE,
)
"""Errors that may be about values."""

OF_TYPES: Final = re.compile("scalar type|same type|dtype|not implemented for")
"""Errors that no value decides."""

OF_METADATA: Final = re.compile(
    r"single memory location|padding|dimension out of range|selected number|"
    r"selected index|expected .* dtype|same dtype|scalar type|shape|size|dimension|"
    r"dim\(\)|implemented for|dtype|\b(from|to - 1) is out of bounds",
    re.IGNORECASE,
)
"""Errors that are about metadata, even if they match ``LIKE_VALUES``."""


def mentions_values(error: BaseException, *, is_tried: bool = False) -> bool:
    """Whether an operator may refuse the made-up values, in one try or more."""
    if isinstance(error, (LinAlgError, MemoryError)):
        return True
    text = str(error)
    if OF_VALUES.search(text) or (OF_MASKS.search(text) and not is_tried):
        return True
    return bool(LIKE_VALUES.search(text)) and not OF_METADATA.search(text)
