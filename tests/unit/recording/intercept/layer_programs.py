"""Run programs of layers with and without the operator cache, and compare."""

import gc
import threading
import traceback
from dataclasses import fields

import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from meta_magic.recording.identities.call_sites import PACKAGE
from meta_magic.session.record import record


class Block(nn.Module):
    """A module within whose call others are called, each twice."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            layer(x)
            x = layer(x)
        return x


class Calling(nn.Module):
    """A module within whose call a function is."""

    def __init__(self, function, layer=None):
        super().__init__()
        self.function = function
        self.layer = layer

    def forward(self, *args):
        return self.function(*args)


def call_inside(function, *args):
    """Call a function within the call of a module."""
    with torch.no_grad():
        return Calling(function)(*args)


def run(program, *, cache):
    """Return the trace of a program, what it returned, and how it failed."""
    torch.manual_seed(0)
    returned, failed = None, None
    try:
        with record(cache=cache) as trace:
            returned = program()
    except Exception as error:
        entries = traceback.extract_tb(error.__traceback__)
        frames = [(e.name, e.lineno) for e in entries if is_shown(e)]
        failed = type(error), str(error), frames[1:]
    return trace, returned, failed


def is_shown(entry):
    return not entry.filename.startswith(PACKAGE)


def assert_recorded_alike(program):
    """Assert that the operator cache changes no record of a program and no result.

    Whatever it does at its first run alone, as torch imports some of itself late.
    """
    run(program, cache=False)
    gc.collect()
    expected = run(program, cache=False)
    for _ in range(3):
        gc.collect()
        trace, returned, failed = run(program, cache=True)
        assert (returned, failed) == expected[1:]
        for field in fields(trace.program):
            found = getattr(trace.program, field.name)
            assert found == getattr(expected[0].program, field.name), field.name
        assert program is trace_layers or trace == expected[0]


def trace_layers():
    """Have a graph be made of layers, whose class is another each time."""
    x, block = torch.ones(2, 4), Block(nn.Linear(4, 4), nn.GELU())
    call_inside(block, x)
    graph = fx.symbolic_trace(block).graph
    call_inside(block, x)
    with torch.no_grad():
        graphs = [graph, make_fx(block)(x).graph]
    return [[node.op for node in graph.nodes] for graph in graphs]


def in_thread(function):
    """Run a function in a thread."""
    thread = threading.Thread(target=function, name="other")
    thread.start()
    thread.join()
