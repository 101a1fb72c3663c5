"""Which device a generator stands for that draws on the CPU."""

import weakref
from typing import Any, Final

import torch
from torch import Generator

from meta_magic.torch_private.tensor_internals import address_of_generator

__all__ = ["check_generator", "is_named", "is_on_cpu", "name_generator", "place_of"]

OWN_DEVICE: Final[Any] = Generator.device

# Operators are given a generator in a wrapper of their own: known by its address.
named: dict[int, tuple["weakref.ref[Generator]", torch.device]] = {}


def name_generator(generator: Generator, place: torch.device) -> None:
    """Note the device that a generator stands for."""
    for address in [at for at, (ref, _) in named.items() if ref() is None]:
        del named[address]
    named[address_of_generator(generator)] = weakref.ref(generator), place


def place_of(generator: Generator) -> torch.device:
    """Return the device that a generator stands for; its own if that was not named."""
    found = named.get(address_of_generator(generator)) if named else None
    if found is None or found[0]() is None:
        own: torch.device = OWN_DEVICE.__get__(generator)
        return own
    return found[1]


def is_named(generator: Generator) -> bool:
    """Whether a generator stands for another device than its own."""
    own: torch.device = OWN_DEVICE.__get__(generator)
    return place_of(generator) != own


def is_on_cpu(generator: Generator) -> bool:
    """Whether a generator is really one of the CPU's."""
    return bool(OWN_DEVICE.__get__(generator).type == "cpu")


def check_generator(generator: Generator, place: torch.device | None) -> None:
    """Refuse to draw from a generator for what the code wants on another device.

    Raises:
        RuntimeError: It is on another kind of device, in torch's words.
    """
    kind = place_of(generator).type
    if place is not None and place.type != kind:
        raise RuntimeError(
            f"Expected a '{place.type}' device type for generator but found '{kind}'"
        )
