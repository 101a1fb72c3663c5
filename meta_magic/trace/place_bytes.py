"""How many bytes lie on each device that the code of a recording names."""

from collections import Counter
from collections.abc import Mapping

from meta_magic.trace.program import HEADER, Program
from meta_magic.trace.signature import Geometry, span_nbytes

__all__ = ["find_place_peaks"]


def find_place_peaks(program: Program) -> Mapping[str, int]:
    """Return the most bytes that lie on each device at once, the largest first.

    What the code names no device for lies on the CPU. Nothing where it names none.
    """
    signatures = program.signatures
    if {g.place for s in signatures for g in (*s.inputs, *s.outputs)} <= {None}:
        return {}
    now, peaks = Counter[str](), Counter[str]()
    lying: dict[int, tuple[str, int]] = {}
    words = memoryview(program.words).cast("I")
    storages = memoryview(program.storage_by_tensor).cast("I")
    deaths = iter(zip(*[iter(memoryview(program.deaths).cast("I"))] * 2, strict=True))
    death = next(deaths, None)
    for index, offset in enumerate(program.offsets[:-1]):
        while death is not None and death[0] <= index:
            place, nbytes = lying.pop(death[1], ("cpu", 0))
            now[place] -= nbytes
            death = next(deaths, None)
        signature = program.signatures[words[offset]]
        numbers = words[offset + HEADER : program.offsets[index + 1]]
        tensors = (*signature.inputs, *signature.outputs)
        for number, geometry in zip(numbers, tensors, strict=True):
            storage = storages[number]
            place, nbytes = name_place(geometry), span_nbytes(geometry)
            before = lying.get(storage, (place, 0))
            if before[0] != place or before[1] < nbytes:
                now[before[0]] -= before[1]
                now[place] += max(nbytes, before[1])
                peaks[place] = max(peaks[place], now[place])
                lying[storage] = place, max(nbytes, before[1])
    return dict(peaks.most_common())


def name_place(geometry: Geometry) -> str:
    """Return where a tensor would lie."""
    if geometry.device.type != "meta":
        return str(geometry.device)
    return str(geometry.place or "cpu")
