"""How a block is recorded, and its text and variables at the start, to record it again.

``trace.fit()``, ``trace.why()`` and ``trace.advice`` record a block again in a child
process. By then the user may have changed the variables: so ``make_rerun`` keeps them
before the block runs, plain data as copies, everything else as weak references.
"""

import ast
import gc
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import torch

from meta_magic.trace.notes import EarlierCell
from meta_magic.trace.world import Peers, World

LITTLE_NBYTES: Final = 64 * 2**20
LITTLE_FLOPS: Final = 10**10
"""Limits of a value that the user did not ask for, on any machine."""


class ValueLimits(NamedTuple):
    """Limits of computing a value that a block asks for, as by ``loss.item()``.

    Attributes:
        nbytes: Bytes held at any moment, with those kept for later values; None for a
            quarter of the free memory.
        flops: Floating-point operations; None for as many as ``seconds`` allow.
        seconds: Estimated time on this machine; all values of a recording together take
            at most six times as long.

    Example:
        >>> with record(limits=ValueLimits(seconds=120)):
        ...     n = torch.ones(10_000, 10_000).sum().item()
    """

    nbytes: int | None = None
    flops: int | None = None
    seconds: float = 10.0

    def little(self, share: int = 1) -> "ValueLimits":
        """Return limits of a value the user did not ask for, one of ``share``."""
        nbytes = LITTLE_NBYTES if self.nbytes is None else self.nbytes
        flops = LITTLE_FLOPS if self.flops is None else self.flops
        return ValueLimits(nbytes // share, flops // share, self.seconds / share)


LIMITS: Final = ValueLimits()

N_VALUES: Final = 6
"""All values of a recording may take as long as six of the most expensive ones."""


DeviceName: TypeAlias = Literal["cpu", "cuda", "meta"]
DEVICES: Final[tuple[DeviceName, ...]] = ("cpu", "cuda", "meta")
NamedMeaning: TypeAlias = Literal["plan", "real"]
MEANINGS: Final[tuple[NamedMeaning, ...]] = ("plan", "real")

KNOWN: Final = (
    "nonzero=all, nonzero=FRACTION such as nonzero=0.5, routing=uniform, "
    "values=NUMBER such as values=nan"
)


class Assumed(NamedTuple):
    """Assumptions on values that cannot be computed.

    Attributes:
        nonzero: The share of a mask that is true, from 0 to 1; None for no assumption.
        is_uniform: Whether routing sends equally many tokens to each expert.
        value: The value of all numbers; None for no assumption.
    """

    nonzero: float | None = None
    is_uniform: bool = False
    value: float | None = None


class Slider(NamedTuple):
    """A number of the code that the report can change.

    Attributes:
        name: How the code names it.
        values: Its values, in order.
    """

    name: str
    values: tuple[int, ...]


class Options(NamedTuple):
    """How to record; attributes that are not listed are arguments of ``record``.

    Attributes:
        n_devices: Number of GPUs; None for as many as the code names.
        is_check: Whether ``meta-magic check`` records: the oracle waits for the CPU's
            answer as long as it takes, so that the answer does not depend on how busy
            the machine is, and errors name the options of that command.
        peers: The processes that are recorded at the same time, if there are others.
        batch: The size of a batch whose samples must not be mixed; "" for none.
    """

    cache: bool = True
    limits: ValueLimits = LIMITS
    device: DeviceName = "cpu"
    n_devices: int | None = None
    assumed: Assumed = Assumed()
    named: NamedMeaning = "plan"
    check_values: bool = False
    is_check: bool = False
    world: World | None = None
    peers: Peers | None = None
    is_checked: bool = False
    dims: tuple[str, ...] = ()
    batch: str = ""
    sliders: tuple[Slider, ...] = ()


def read_check(check: bool | str) -> tuple[bool, str]:  # noqa: FBT001  what users write
    """Return whether a block is checked, and the name of its batch; "" for none."""
    if isinstance(check, bool):
        return check, ""
    kind, _, name = check.partition("=")
    if kind != "batch" or len(read_dims(name)) != 1:
        raise ValueError(f"check is True, or batch=NAME as in batch=B, not {check!r}")
    return True, name


MAX_POSITIONS: Final = 10_000
"""The most values that one slider may have."""

SLIDERS: Final = "write NAME=FIRST..LAST, NAME=FIRST..LAST:STEP or NAME=[64,96,128]"


def read_sliders(
    params: Mapping[str, Iterable[int]] | Iterable[str],
) -> tuple[Slider, ...]:
    """Return the sliders that texts such as ``d_model=256..4096:256`` describe."""
    if isinstance(params, Mapping):
        return tuple(make_slider(name, values) for name, values in params.items())
    texts = [params] if isinstance(params, str) else params
    return tuple(read_slider(text) for text in texts)


def read_slider(text: str) -> Slider:
    """Return the slider of a text; see :func:`read_sliders`."""
    name, _, written = (part.strip() for part in text.rpartition("="))
    first, dots, rest = written.partition("..")
    last, _, step = rest.partition(":")
    is_range = all(one.strip().isdecimal() for one in (first, last, step or "1"))
    if dots and is_range and int(step or 1):
        return make_slider(name, range(int(first), int(last) + 1, int(step or 1)))
    values = None
    with suppress(ValueError, SyntaxError):
        values = ast.literal_eval(written)
    if isinstance(values, (list, tuple)):
        return make_slider(name, values)
    raise ValueError(f"-p {text}: {SLIDERS}")


def make_slider(name: str, values: Iterable[int]) -> Slider:
    """Return a slider with values in order, each once."""
    if not name.partition("=")[0].isidentifier():  # n=8 names the 8 of several
        raise ValueError(f"{name!r} is no name: {SLIDERS}")
    if isinstance(values, range) and len(values) > MAX_POSITIONS:
        step = values.step * -(-len(values) // MAX_POSITIONS)
        raise ValueError(
            f"{name} has {len(values):,} values, at most {MAX_POSITIONS:,}: write a "
            f"step, as in {name}={values[0]}..{values[-1]}:{step}"
        )
    listed = [*values]
    if not listed:
        raise ValueError(f"{name} has no values: {SLIDERS}, with FIRST up to LAST")
    if not all(type(one) is int and one > 0 for one in listed):
        raise ValueError(f"{name}={listed[:8]}: a slider has positive integers")
    return Slider(name, tuple(sorted({*listed})))


def read_dims(dims: str | Iterable[str]) -> tuple[str, ...]:
    """Return the names of sizes in a text such as ``B,T,D``, or in several."""
    texts = dims.split(",") if isinstance(dims, str) else [*dims]
    names = tuple(text.strip() for text in texts if text.strip())
    for text in names:
        name, equals, value = text.partition("=")
        if not name.isidentifier() or (equals and not value.isdecimal()):
            raise ValueError(f"dims are names, or NAME=NUMBER as in B=8, not {text!r}")
    return names


def read_device(
    name: str | None, *, in_world: bool = False
) -> tuple[DeviceName, int | None]:
    """Return the device whose kernels are recorded, and how many GPUs there are.

    ``name`` is one of ``DEVICES``, ``cuda:8`` for eight; None for the CPU of this
    machine, beside the GPUs that torch sees, or those of a world.
    """
    if name is None:
        return "cpu", None if in_world else torch.cuda.device_count() or None
    kind, _, number = name.partition(":")
    is_number = number.isdecimal() and int(number) > 0
    for device in DEVICES:
        if name == device:
            return device, None
        if kind == device == "cuda" and is_number:
            return device, int(number)
    known = ", ".join(DEVICES)
    raise ValueError(f"as_device is one of {known}, or cuda:8, not {name!r}")


def read_meaning(name: str) -> NamedMeaning:
    """Return the ``named`` option; raise a ``ValueError`` if it is unknown."""
    for meaning in MEANINGS:
        if name == meaning:
            return meaning
    raise ValueError(f"named is one of {', '.join(MEANINGS)}, not {name!r}")


def read_assumptions(texts: str | Iterable[str]) -> Assumed:
    """Return the assumptions in texts such as ``nonzero=all``."""
    assumed = Assumed()
    for text in [texts] if isinstance(texts, str) else texts:
        name, _, value = text.partition("=")
        number = 1.0 if text == "nonzero=all" else read_number(value)
        if name == "nonzero" and number is not None and 0 <= number <= 1:
            assumed = assumed._replace(nonzero=number)
        elif name == "values" and number is not None:
            assumed = assumed._replace(value=number)
        elif text == "routing=uniform":
            assumed = assumed._replace(is_uniform=True)
        else:
            raise ValueError(f"{text!r} is no known assumption; these are: {KNOWN}")
    return assumed


def read_number(text: str) -> float | None:
    """Return the number in a text; None if it is no number."""
    try:
        return float(text)
    except ValueError:
        return None


PLAIN: Final = (
    *(bool, int, float, complex, str, bytes, type(None), range),
    *(torch.dtype, torch.device, torch.Size),
)
"""Types whose instances cannot change and hold nothing."""

MAX_ITEMS: Final = 300
"""Values in a container, nested ones included, up to which it is copied."""

CONTAINERS: Final = (list, tuple, set, dict)


class Former(NamedTuple):
    """A variable before the block ran.

    Attributes:
        kept: Its value where that is plain data, else a weak reference to it, or None.
        is_plain: Whether ``kept`` is the value.
    """

    kept: Any
    is_plain: bool

    def read(self) -> Any:
        """Return the value; raise a ``LookupError`` if it is gone."""
        value = self.kept if self.is_plain or self.kept is None else self.kept()
        if value is None and not self.is_plain:
            raise LookupError
        return value


class Modes(NamedTuple):
    """The modes of torch around a block.

    Attributes:
        autocast: (device type, whether autocast was on, its dtype).
    """

    is_grad_enabled: bool
    is_inference: bool
    dtype: torch.dtype
    autocast: tuple[tuple[str, bool, torch.dtype], ...]


class ModuleText(NamedTuple):
    """A module of the user whose text is a part of a block.

    Attributes:
        name: Its name in ``sys.modules``.
        first: The first of its lines in the block's text.
        last: The last of them.
    """

    name: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """All that is needed to record a block again.

    It keeps no object of the user alive but plain data.

    Attributes:
        text: The block as Python, at the lines of its file; None where it is a ``with``
            statement or a function of that file.
        file: File name under which it ran.
        line: Line of that statement, with decorators; 0 for a whole text.
        module: Name of the module whose variables the block uses.
        names: The names in its code.
        before: The variables of these names, before the block ran.
        function: The code of the function around it, which has variables of its own;
            None outside of functions.
        asked_by: For a whole function, as a test of pytest: the name by which its code
            asks the trace (``meta_trace``). The block ends before that statement.
        earlier: The cells that ran before, the oldest first.
        modules: Parts of the text that are the user's modules; they run first.
        own_line: The line at which the block itself begins in the text, after the cells
            that it depends on; 0 if the text has nothing else.
    """

    text: str | None
    file: str
    line: int = 0
    module: str
    names: frozenset[str]
    before: Mapping[str, Former] = field(repr=False)
    function: CodeType | None = None
    asked_by: str | None = None
    options: Options
    modes: Modes
    earlier: Sequence[EarlierCell] = field(default=(), repr=False)
    modules: tuple[ModuleText, ...] = ()
    own_line: int = 0

    @property
    def local(self) -> frozenset[str]:
        """The names of the function's own variables."""
        code = self.function
        if code is None:
            return frozenset()
        return frozenset({*code.co_varnames, *code.co_cellvars, *code.co_freevars})


def make_rerun(
    *,
    text: str | None,
    file: str,
    line: int = 0,
    of_module: Mapping[str, object],
    variables: Mapping[str, object],
    names: frozenset[str],
    function: CodeType | None = None,
    options: Options,
) -> Rerun | None:
    """Return a :class:`Rerun`, with its fields, of a block that has not run yet.

    ``of_module`` are the variables of the block's module, ``variables`` all that it can
    see. None where ``of_module`` is no imported module's: it may be gone any time.
    """
    module = of_module.get("__name__")
    known = sys.modules.get(module) if isinstance(module, str) else None
    if not isinstance(module, str) or known is None or vars(known) is not of_module:
        return None
    return Rerun(
        text=text,
        file=file,
        line=line,
        module=module,
        names=names,
        before={n: keep(variables[n]) for n in sorted(names) if n in variables},
        function=function,
        options=options,
        modes=read_modes(),
    )


def make_call_rerun(
    code: CodeType,
    of_module: Mapping[str, object],
    arguments: Mapping[str, object],
    options: Options,
    asked_by: str = "",
) -> Rerun | None:
    """Return a :class:`Rerun` of a function's body, before it is called.

    ``of_module`` are the variables of its module, ``arguments`` those of the call by
    name; ``options`` and ``asked_by`` are as in :class:`Rerun`.
    """
    rerun = make_rerun(
        text=None,
        file=code.co_filename,
        line=code.co_firstlineno,
        of_module=of_module,
        variables={**of_module, **arguments},
        names=list_names(code),
        function=code,
        options=options,
    )
    return rerun and replace(rerun, asked_by=asked_by)


def read_modes() -> Modes:
    """Return the modes of torch in this thread."""
    return Modes(
        is_grad_enabled=torch.is_grad_enabled(),
        is_inference=torch.is_inference_mode_enabled(),
        dtype=torch.get_default_dtype(),
        autocast=tuple(
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in ("cpu", "cuda")
        ),
    )


def list_names(code: CodeType) -> frozenset[str]:
    """Return all names in a code object and in those nested in it."""
    return frozenset(name for one in walk_codes(code) for name in one.co_names) | {
        *code.co_varnames,
        *code.co_cellvars,
        *code.co_freevars,
    }


def walk_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object, and those nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from walk_codes(constant)


def keep(value: object) -> Former:
    """Return a variable's value as a copy or a weak reference."""
    try:
        return Former(copy_plain(value), is_plain=True)
    except ValueError:
        pass
    try:
        return Former(weakref.ref(value), is_plain=False)
    except TypeError:  # a container, or an object of a class with slots
        is_plain = holds_only_data(value)
        return Former(value if is_plain else None, is_plain=is_plain)


def holds_only_data(value: object) -> bool:
    """Whether an object refers to few objects, none of which can be weakly referenced.

    Such objects are plain data: to keep them alive costs little and changes nothing.
    """
    seen, todo = {id(value)}, [value]
    while todo:
        for item in gc.get_referents(todo.pop()):
            if type(item).__weakrefoffset__ and not isinstance(item, type):
                return False
            if id(item) not in seen and not isinstance(item, type):
                seen.add(id(item))
                todo.append(item)
            if len(seen) > MAX_ITEMS:
                return False
    return True


def copy_plain(value: Any, room: Iterator[int] | None = None) -> Any:
    """Return a copy of plain data; ValueError for other, large or circular data."""
    room = iter(range(MAX_ITEMS)) if room is None else room
    if next(room, None) is None:
        raise ValueError
    if type(value) in PLAIN:
        return value
    if type(value) not in CONTAINERS:
        raise ValueError
    if type(value) is dict:
        return {copy_plain(k, room): copy_plain(v, room) for k, v in value.items()}
    return type(value)([copy_plain(item, room) for item in value])
