"""The options of a recording: ``mm.record(as_device=..., limits=..., ...)``.

:class:`Options` has all of them; the ``read_*`` functions check what users write.
"""

import ast
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, Literal, NamedTuple, TypeAlias

import torch

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
