"""Modules that are asked for in a wrong way, or hold what torch cannot make."""

from torch import nn

from meta_magic import record


def build():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def recorded():
    with record():
        return build()


def holding(tensor, kind="buffer"):
    module = nn.Module()
    if kind == "buffer":
        module.register_buffer("odd", tensor)
    else:
        module.odd = nn.Parameter(tensor, requires_grad=False)
    return module
