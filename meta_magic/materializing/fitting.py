"""List other choices that fit, for a materialization that does not.

The panel offers a smaller dtype, another device, or the largest submodule that fits.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn

from meta_magic.errors import MaterializeError
from meta_magic.materializing.materialize import prepare
from meta_magic.materializing.preparation import Preparation
from meta_magic.materializing.targets import write_path
from meta_magic.replaying.devices import free_nbytes, list_devices
from meta_magic.trace.units import format_bytes

SMALLER: Final = (torch.bfloat16,)
MAX_TRIED: Final = 3


def list_fitting(
    whole: Preparation, name: str, arguments: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the choices that fit, as text."""
    root = whole.task.root
    if arguments.get("dtype") is None:
        for dtype in SMALLER:
            found = prepare_fitting(root, {**arguments, "dtype": dtype})
            if found is not None:
                text = str(dtype).removeprefix("torch.")
                yield f"{text} ({format_bytes(found.peak_nbytes)})"
    used = {str(target.device) for target in whole.targets}
    for device in list_devices():
        is_other = used != {device}
        given = {**arguments, "device": device}
        found = prepare_fitting(root, given) if is_other else None
        if found is not None:
            yield f"{device} ({format_bytes(free_nbytes(found.device))} free)"
    if isinstance(root, nn.Module):
        yield from find_submodule(whole, name, arguments)


def find_submodule(
    whole: Preparation, name: str, arguments: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the largest submodule that fits, if there is one."""
    nbytes: Counter[str] = Counter()
    for target in whole.targets:
        parts = [held.name.split(".") for held in target.held]
        above = (".".join(p[:n]) for p in parts for n in range(1, len(p)))
        nbytes.update(dict.fromkeys(above, target.nbytes))
    free = free_nbytes(whole.device)
    modules = dict(whole.task.modules)
    tried = [fqn for fqn, _ in nbytes.most_common() if fqn in modules]
    small = [fqn for fqn in tried if nbytes[fqn] <= free]
    for fqn in small[:MAX_TRIED]:
        found = prepare_fitting(modules[fqn], arguments)
        if found is not None:
            yield f"{write_path(modules, name, fqn)} ({format_bytes(found.nbytes)})"
            return


def prepare_fitting(module: object, arguments: Mapping[str, Any]) -> Preparation | None:
    """Return how to make a module real, if that fits."""
    try:
        found = prepare(module, **arguments)
    except MaterializeError:
        return None
    return found if found.fits else None
