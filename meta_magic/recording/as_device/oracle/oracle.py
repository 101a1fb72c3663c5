"""The CPU's own operator is asked whether it refuses a call, and in what words.

Refused is only what metadata decides: a small call runs with zeros, ones and other
values, and is refused if each of them is; a large one is asked at its true sizes, on
memory that nobody touches, in a child process, as torch refuses before it computes.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # public
from torch.nn.parameter import Parameter, is_lazy

from meta_magic.recording.as_device.oracle.child import (
    NO_ANSWER,
    can_fork,
    run_in_child,
)
from meta_magic.recording.as_device.oracle.proxy_tensors import (
    FILLINGS,
    UNRESERVED,
    ProxyTensors,
    Unaskable,
    measure_spans,
    put_on_cpu,
    rebuild,
)
from meta_magic.recording.as_device.oracle.shrinking import (
    MAX_NUMEL,
    is_small,
    shrink,
    take_one,
)
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.signatures.entries import Args, Kwargs
from meta_magic.torch_private.dispatcher import find_schema
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction

OF_VALUES: Final = re.compile(
    r"index out of range in self|target -?\d+ is out of bounds|"
    r"out of bounds for dimension \d+ with size|index -?\d+ is out of|"
    r"can't allocate|not enough memory|singular|converge|"
    r"positive-definite|pivots [^.]*between|internal assert|u\[|"
    r"probability tensor|probabilities|offsets\[|sum to|class values must|"
    r"all elements of (input|target)",
    re.IGNORECASE,
)
"""What only values, or the memory of this machine, can have said."""

OF_MASKS: Final = re.compile("indexing result of shape|indexing tensors could not")
"""What may be about the elements that a mask chooses, as many as the words say."""

LIKE_VALUES: Final = re.compile(
    r"out of range|out of bounds|not positive|non-?negative|negative|\binf\b|nan\b|"
    r"must be (in|between|>|<)|between|monoton|sum of|offsets|lengths|"
    r"expected to be sorted|number of (non-?zero|true)|rank|ill-condition|illegal|"
    r"division by zero|diagonal|numerator|infinite|indptr|invariant|"
    r"could not run|max must|min and max",
    re.IGNORECASE,
)
"""What may be about values."""

OF_TYPES: Final = re.compile("scalar type|same type|dtype|not implemented for")
"""What no value decides."""

OF_METADATA: Final = re.compile(
    r"single memory location|padding|dimension out of range|selected number|"
    r"selected index|expected .* dtype|same dtype|scalar type|shape|size|dimension|"
    r"dim\(\)|implemented for|dtype|\b(from|to - 1) is out of bounds",
    re.IGNORECASE,
)
"""What is about metadata all the same."""


def mentions_types(error: BaseException) -> bool:
    """Whether an operator refused types, as it would with any values."""
    return bool(OF_TYPES.search(str(error))) and not mentions_values(error)


def mentions_values(error: BaseException, *, is_tried: bool = False) -> bool:
    """Whether an operator that was given made-up values refused them, perhaps.

    Args:
        error: What it said.
        is_tried: Whether it says so whatever it is given.
    """
    if isinstance(error, (LinAlgError, MemoryError)):
        return True
    text = str(error)
    if OF_VALUES.search(text) or (OF_MASKS.search(text) and not is_tried):
        return True
    return bool(LIKE_VALUES.search(text)) and not OF_METADATA.search(text)


RANDOM: Final = torch.Tag.nondeterministic_seeded


class SameDraws:
    """Context manager after which numbers are drawn as if an operator drew none."""

    def __init__(self, operator: Any) -> None:
        self._is_due = RANDOM in getattr(operator, "tags", ())
        self._state: Any = None

    def __enter__(self) -> None:
        if self._is_due:
            self._state = torch.default_generator.get_state()

    def __exit__(self, *_: object) -> None:
        if self._is_due:
            torch.default_generator.set_state(self._state)


MAX_SHARE: Final = 0.25
MAX_SHARE_UNSAFE: Final = 0.5
MIN_SECONDS: Final = 1.0
"""What is spent on asking at most: so much, or that share of the recording, more if
meta refuses a call, as without an answer a valid program would end."""


UNRESIZABLE: Final = "resize storage that is not resizable"
"""What torch says where it would grow memory that nobody touches."""

MAX_NBYTES: Final = 16 * MAX_NUMEL
"""What the storages of such a call take up to its last elements: few of a large one
may lie far apart."""


class Verdict(Enum):
    """What is said of a call that is not known to be refused."""

    ACCEPTED = "accepted"
    UNKNOWN = "unknown"
    UNASKED = "unasked"


Answer: TypeAlias = Exception | Verdict


class Oracle:
    """Asks the CPU, within a share of what a recording takes.

    Args:
        is_patient: Whether it asks however long that takes.

    Attributes:
        returned: What it returned last of a call that it was asked about as it is.
    """

    def __init__(self, *, is_patient: bool = False) -> None:
        self.returned: Any = None
        self._is_patient = is_patient
        self._started = time.perf_counter()
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
        """Return what the CPU raises where metadata decides it; else a verdict.

        Args:
            func: An operator, or a function of torch.
            args: Its positional arguments, tensors on meta.
            kwargs: Its others.
            made: What it returned on meta.
            is_unsafe: Whether it may end the process, as when meta refused it.
        """
        self.returned = None
        tensors = tensors_in(args, kwargs)
        if not all(map(is_plain, tensors)):
            return Verdict.UNKNOWN
        if self._is_over(MAX_SHARE_UNSAFE if is_unsafe else MAX_SHARE):
            return Verdict.UNASKED
        started, is_on = time.perf_counter(), torch.is_grad_enabled()
        try:
            question = Question(func, args, kwargs, tensors)
            with (
                DisableTorchDispatch(),
                DisableTorchFunction(),
                torch.set_grad_enabled(question.is_of_function and is_on),
                SameDraws(func),
            ):
                answer = question.ask([*tensors, *made], is_unsafe=is_unsafe)
            self.returned = question.returned
        except (Unaskable, OSError):
            return Verdict.UNKNOWN
        finally:
            self._seconds += time.perf_counter() - started
        return answer

    def _is_over(self, share: float) -> bool:
        """Whether more than a share of the recording was spent on asking."""
        seconds = time.perf_counter() - self._started
        is_much = self._seconds > max(MIN_SECONDS, seconds * share)
        return is_much and not self._is_patient


class Question:
    """One call that the CPU is asked about.

    Attributes:
        returned: What it returned, if it ran as it is and in this process.
        is_of_function: Whether it is of no operator: it may look at gradients.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        args: Args,
        kwargs: Kwargs,
        tensors: Sequence[Tensor],
    ) -> None:
        self._func = func
        # Memory that needs an accelerator is no matter of metadata.
        self._call = args, {n: v for n, v in kwargs.items() if n != "pin_memory"}
        self._tensors = tensors
        self._spans = measure_spans(tensors)
        self.returned: Any = None
        self.is_of_function = find_schema(func) is None
        self._make_stand_ins = partial(
            ProxyTensors, self._spans, has_gradients=self.is_of_function
        )

    def ask(self, seen: Sequence[Tensor], *, is_unsafe: bool) -> Answer:
        """Return what the CPU raises.

        Args:
            seen: All tensors that are met, results among them.
            is_unsafe: Whether it may end the process, as when meta refused it.
        """
        if any(tensor.is_nested for tensor in seen):  # which say no shape
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
        """Return what is raised of sizes, if it is raised of one element, too."""
        smaller = take_one(self._call)
        if smaller == self._call:  # no sizes are told: it may make much
            return Verdict.UNKNOWN
        args, kwargs = (rebuild(given, put_on_cpu) for given in smaller)
        answer = decide(partial(self._func, *args, **kwargs))
        is_taken = isinstance(answer, Verdict)
        return answer if is_taken else self._confirm(self._run_untouched)

    def _ask_of_smaller(self) -> Answer:
        """Return what is raised at the true sizes, if a smaller call is refused."""
        smaller = shrink(self._func, self._call, self._tensors)
        if smaller is None:
            return Verdict.UNKNOWN
        for filling in FILLINGS:
            args, kwargs = smaller.build("cpu", filling)
            answer = decide(partial(self._func, *args, **kwargs))
            if isinstance(answer, Verdict):
                return answer
        return self._confirm(self._run_untouched)

    def _run_small(self) -> Answer:
        """Return what is raised whatever the tensors hold."""
        answers = []
        for filling in FILLINGS:
            proxies = self._make_stand_ins(filling)
            answer = decide(lambda: self._run_with(proxies), is_tried=True)  # noqa: B023  called at once
            if isinstance(answer, Verdict) or mentions_types(answer):
                return answer
            answers.append(answer)
        is_one = len(set(map(str, answers))) == 1  # else values have their part in it
        return answers[0] if is_one else Verdict.UNKNOWN

    def _run_small_or_raise(self) -> None:
        answer = self._run_small()
        if isinstance(answer, Exception):
            raise answer

    def _run_untouched(self) -> None:
        try:
            self._run_with(self._make_stand_ins(is_untouched=True))
        except RuntimeError as error:
            if UNRESIZABLE not in str(error):
                raise
            self._run_with(self._make_stand_ins())

    def _confirm(self, run: Callable[[], object], *, is_tried: bool = False) -> Answer:
        """Return what is raised in a child process, if there can be one."""
        if not can_fork() or UNRESERVED is None:
            return Verdict.UNKNOWN
        raised = run_in_child(run)
        is_known = raised is not NO_ANSWER
        return judge(raised, is_tried=is_tried) if is_known else Verdict.UNKNOWN

    def _run_with(self, proxies: ProxyTensors) -> None:
        args, kwargs = self._call

        def replace(value: Any) -> Any:
            is_tensor = isinstance(value, Tensor)
            return proxies.make(value) if is_tensor else put_on_cpu(value)

        try:
            args, kwargs = rebuild(args, replace), rebuild(kwargs, replace)
        except Exception as error:  # nothing that the operator says
            raise Unaskable from error
        self.returned = self._func(*args, **kwargs)


def decide(run: Callable[[], object], *, is_tried: bool = False) -> Answer:
    """Return what something raises, unless other values might not have it raised."""
    try:
        run()
    except Unaskable:
        raise
    except Exception as error:  # noqa: BLE001  it is the answer
        error = error.with_traceback(None)  # which would keep what is on meta
        return judge(error, is_tried=is_tried)
    return Verdict.ACCEPTED


def judge(raised: Exception | None, *, is_tried: bool) -> Answer:
    """Return what was raised, if metadata alone decided it."""
    if raised is None:
        return Verdict.ACCEPTED
    is_of_values = mentions_values(raised, is_tried=is_tried)
    return Verdict.UNKNOWN if is_of_values else raised


def is_plain(tensor: Tensor) -> bool:
    """Whether something can stand for a tensor."""
    kind = type(tensor)
    is_own = kind.__torch_dispatch__ is not Tensor.__torch_dispatch__
    if kind not in {Tensor, Parameter} and (is_own or is_lazy(tensor)):
        return False
    is_here = tensor.is_meta or tensor.is_cpu
    return is_here and tensor.layout is torch.strided and not tensor.is_quantized


def is_view(func: Any) -> bool:
    """Whether an operator returns what shares memory with an argument, and no more."""
    schema = find_schema(func)
    if schema is None or schema.is_mutable:
        return False
    return any(returned.alias_info for returned in schema.returns)


LINALG_CHECK: Final = "aten._linalg_check_errors.default"


def ask_of_values(
    func: Callable[..., Any],
    args: Args,
    kwargs: Kwargs,
    real_by_id: Mapping[int, Tensor],
) -> Answer:
    """Return what the CPU raises of a call, given what it reads.

    At its true sizes, in a child process where there can be one: a kernel may trust
    values that are wrong.

    Args:
        func: An operator.
        args: Its positional arguments, tensors on meta.
        kwargs: Its others.
        real_by_id: What some of these tensors hold, by their ``id()``.
    """
    has_child = can_fork() and UNRESERVED is not None
    met = tensors_in(args, kwargs)
    tensors = [tensor for tensor in met if tensor.is_meta or not has_child]
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
        answer = judge_of_values(run_in_child if has_child else run_here, run)
    if str(func) == LINALG_CHECK and isinstance(answer, RuntimeError):
        return as_linalg_error(answer)
    return answer


def as_linalg_error(error: RuntimeError) -> RuntimeError:
    """Return an error as ``torch.linalg`` raises it: torch.ops loses the class."""
    is_of_lu = str(error).startswith("torch.linalg.lu_factor")
    return error if is_of_lu else LinAlgError(str(error))


Run = Callable[[Callable[[], object]], Exception | None]
"""Runs a function; returns what it raised, or None if it ran."""


def judge_of_values(run_it: Run, function: Callable[[], object]) -> Answer:
    """Return what a function raises."""
    try:
        raised = run_it(function)
    except (Unaskable, OSError):
        return Verdict.UNKNOWN
    if raised is NO_ANSWER:
        return Verdict.UNKNOWN
    return Verdict.ACCEPTED if raised is None else raised


def run_here(run: Callable[[], object]) -> Exception | None:
    """Run a function in this process."""
    try:
        run()
    except Unaskable:
        raise
    except Exception as error:  # noqa: BLE001  it is the answer
        return error.with_traceback(None)
    return None
