"""What the user chooses for a recording."""

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple, TypeAlias

import torch

LITTLE_NBYTES: Final = 64 * 2**20
LITTLE_FLOPS: Final = 10**10
"""What a value may take on any machine that nobody waits for."""


class ValueLimits(NamedTuple):
    """What the value of a tensor may take that a block asks for.

    Attributes:
        nbytes: Bytes held at any moment, with what is kept for later values; None for
            a quarter of the memory that is free.
        flops: Floating-point operations; None for what ``seconds`` allow.
        seconds: About how long it takes on this machine; all values of a recording
            take at most six times as long.

    Example:
        >>> with record(limits=ValueLimits(seconds=120)):
        ...     n = torch.ones(10_000, 10_000).sum().item()
    """

    nbytes: int | None = None
    flops: int | None = None
    seconds: float = 10.0

    def little(self, share: int = 1) -> "ValueLimits":
        """Return what a value may take that nobody waits for.

        Args:
            share: What part of it, where several are computed at once.
        """
        nbytes = LITTLE_NBYTES if self.nbytes is None else self.nbytes
        flops = LITTLE_FLOPS if self.flops is None else self.flops
        return ValueLimits(nbytes // share, flops // share, self.seconds)


LIMITS: Final = ValueLimits()

N_VALUES: Final = 6
"""All values of a recording may take as long as so many that take the most."""


DeviceName: TypeAlias = Literal["cpu", "cuda", "meta"]
DEVICES: Final[tuple[DeviceName, ...]] = ("cpu", "cuda", "meta")
NamedMeaning: TypeAlias = Literal["plan", "real"]
MEANINGS: Final[tuple[NamedMeaning, ...]] = ("plan", "real")

KNOWN: Final = (
    "nonzero=all, nonzero=FRACTION such as nonzero=0.5, routing=uniform, "
    "values=NUMBER such as values=nan"
)


class Assumed(NamedTuple):
    """What is assumed of values that cannot be computed.

    Attributes:
        nonzero: Which part of a mask is true, of 0 to 1; None if that is not assumed.
        is_uniform: Whether routing sends as many tokens to each expert.
        value: What numbers are; None if that is not assumed.
    """

    nonzero: float | None = None
    is_uniform: bool = False
    value: float | None = None


class Options(NamedTuple):
    """How to record.

    Attributes:
        cache: Whether calls seen before are answered without running their kernel.
        limits: What the value of a tensor may take that the block asks for.
        device: Whose kernels are recorded.
        n_devices: How many of it there are; None for as many as the code names.
        assumed: What holds for values that take more.
        named: What a device means that the code names: ``plan``, while all stays on
            meta, or ``real``, as torch means it.
        check_values: Whether indices and classes are evaluated that nobody knows.
        is_patient: Whether the CPU is asked whether it refuses a call however long that
            takes, so that the answer does not depend on how busy the machine is.
    """

    cache: bool = True
    limits: ValueLimits = LIMITS
    device: DeviceName = "cpu"
    n_devices: int | None = None
    assumed: Assumed = Assumed()
    named: NamedMeaning = "plan"
    check_values: bool = False
    is_patient: bool = False


def read_device(name: str | None) -> tuple[DeviceName, int | None]:
    """Return the device whose kernels are recorded, and how many there are to be.

    Args:
        name: One of ``DEVICES``, ``cuda:8`` for eight; None for CUDA where torch sees
            it, else the CPU.

    Raises:
        ValueError: There are no rules for it.
    """
    if name is None:
        return ("cuda" if torch.cuda.is_available() else "cpu"), None
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
    """Return what a device means that the code names.

    Raises:
        ValueError: It is neither ``plan`` nor ``real``.
    """
    for meaning in MEANINGS:
        if name == meaning:
            return meaning
    raise ValueError(f"named is one of {', '.join(MEANINGS)}, not {name!r}")


def read_assumptions(texts: str | Iterable[str]) -> Assumed:
    """Return what is assumed, as ``nonzero=all`` and the like say it.

    Raises:
        ValueError: One of them is not known; the message lists those that are.
    """
    assumed = Assumed()
    for text in [texts] if isinstance(texts, str) else texts:
        name, _, value = text.partition("=")
        part = read_fraction(value) if name == "nonzero" else None
        number = read_number(value) if name == "values" else None
        if part is not None:
            assumed = assumed._replace(nonzero=part)
        elif number is not None:
            assumed = assumed._replace(value=number)
        elif text == "routing=uniform":
            assumed = assumed._replace(is_uniform=True)
        else:
            raise ValueError(f"{text!r} is no assumption known; these are: {KNOWN}")
    return assumed


def read_fraction(text: str) -> float | None:
    """Return a number of 0 to 1, ``all`` being 1; None if it is none."""
    if text == "all":
        return 1.0
    part = read_number(text)
    return part if part is not None and 0 <= part <= 1 else None


def read_number(text: str) -> float | None:
    """Return a number; None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None
