"""Interrupt what runs at its n-th Python call, for one n after the other.

``python every_call.py training 7 40`` interrupts at every 7th call, from the 40th on,
and prints how many it tried, and what was left behind, lost or another error. By hand,
without these two, for all calls of each of ``RUNS``. Run it in a process of its own.
"""

import collections
import io
import signal
import sys
import warnings

import numpy as np
import torch
from IPython.core.interactiveshell import InteractiveShell
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from meta_magic import materialize, record
from tests.integration.session.storm import state

AWAITING = """import asyncio
model = torch.nn.Linear(2, 2)
with torch.no_grad():
    await asyncio.sleep(0)
    y = model(torch.ones(2))
y.sum().item()"""


def record_nothing():
    with record():
        pass


def train():
    with record():
        model = nn.Sequential(nn.Linear(2, 3), nn.Dropout(), nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 2)).mean()
            loss.backward()
            optimizer.step()
            loss.item()


def load():
    with record():
        data = TensorDataset(torch.arange(4.0))
        for (batch,) in DataLoader(data, batch_size=2, shuffle=True):
            batch.sum()


def attend():
    with record(), torch.autocast("cpu"):
        model = nn.MultiheadAttention(4, 2, batch_first=True)
        x = torch.randn(1, 3, 4)
        model(x, x, x)[0].sum().backward()
        with torch.inference_mode():
            functional.scaled_dot_product_attention(x, x, x)


def share():
    with record():
        x, array = torch.ones(3), np.ones(3)
        y = torch.from_numpy(array)
        x.numpy()[0] = 2
        array += 1
        y.add_(x)


def make_real():
    with record():
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    return lambda: materialize(model)


def await_cell():
    result = InteractiveShell.instance().run_cell(f"%%meta -q\n{AWAITING}")
    if result.error_in_exec is not None:
        raise result.error_in_exec


RUNS = {
    "record": lambda: record_nothing,
    "training": lambda: train,
    "loader": lambda: load,
    "attention": lambda: attend,
    "arrays": lambda: share,
    "materialize": make_real,
    "awaiting": lambda: await_cell,
}
"""What makes what is run, anew each time."""


BOUNDS = "CellParts.drive", "CellParts.__exit__"
"""What drives a cell that awaits, the event loop included, and what comes after it."""


def probe():
    """Return what shows whether torch is as ever: beyond the state, what it does."""
    x = torch.ones(2, requires_grad=True)
    y = torch.nn.functional.linear(torch.ones(2, 2), x)
    return (
        *state(),
        y.requires_grad,
        y.dtype,
        str(y.device),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_rng_state().sum().item(),
    )


def interrupt_at(number, run):
    """Run something, and interrupt it at a call.

    Returns:
        The place of the call, None if it made fewer; and what was raised.
    """
    n_calls, place, is_counting = 0, None, run is not await_cell

    def count(frame, event, _):
        nonlocal n_calls, place, is_counting
        if frame.f_code.co_qualname in BOUNDS:  # else the shell itself is interrupted
            is_counting = frame.f_code.co_qualname == BOUNDS[0]
        if event == "call" and is_counting:
            n_calls += 1
            if n_calls == number:
                place = f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    error = "nothing"
    sys.setprofile(count)
    try:
        run()
    except BaseException as raised:  # whatever it is
        error = f"{type(raised).__name__}: {raised}"
    finally:
        sys.setprofile(None)
    return place, error


def is_closed_generator(unraisable):
    """Whether it was in a generator that is closed, where signals are not seen."""
    return getattr(unraisable.object, "gi_code", None) is not None


def main(kind, step=1, first=1):
    torch.manual_seed(0)
    run = RUNS[kind]()
    run()
    found, number, clean = collections.Counter(), first, None
    dropped = []
    sys.unraisablehook = dropped.append
    while True:
        run = RUNS[kind]()
        torch.manual_seed(0)
        clean = clean or probe()
        place, error = interrupt_at(number, run)
        if place is None:
            break
        torch.manual_seed(0)
        left = [pair for pair in zip(clean, probe(), strict=True) if len({*pair}) > 1]
        is_raised = error.startswith("KeyboardInterrupt")
        is_raised |= any(map(is_closed_generator, dropped))
        dropped.clear()
        if left or not is_raised:
            found[f"{place}: {error} {left}"] += 1
            torch.set_grad_enabled(True)
        number += step
    print((number - first) // step, dict(found), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.stdout = io.StringIO()  # the shell shows each error
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.argv[1] == "awaiting":
        InteractiveShell.instance().run_line_magic("load_ext", "meta_magic")
        InteractiveShell.instance().user_ns["torch"] = torch
    main(sys.argv[1], *map(int, sys.argv[2:]))
