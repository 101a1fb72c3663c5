"""Interrupt replays at random moments, and compare later values with the CPU's.

``python value_storm.py 40`` trains 40 times for real and recorded. While the recorded
cell asks for a value it is interrupted, swallows that, and asks again. Prints how often
it was interrupted, and what was wrong: another value, another error, a changed mode.
``python value_storm.py 40 recording/rows`` interrupts each once, at one of the places
in these files of ours where Python looks for interrupts. A timer rarely meets those
after a call of a C function. Run it in a process of its own.
"""

import collections
import dis
import functools
import random
import signal
import sys
import time
from itertools import pairwise
from types import CodeType

import torch
from torch import nn

from meta_magic import record
from tests.integration.session.every_call import probe

SECONDS = 0.004
"""Within which an interrupt comes: most values take less, some more."""


def train(model, ask):
    """Train a little, ask for values all the time, and return them."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    counts, values = torch.zeros(3), []
    for _ in range(6):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 2)).square().mean()
        loss.backward()
        optimizer.step()
        counts[torch.randint(3, ())] += 1
        values += [ask(loss.item), ask(counts.tolist), ask(model[0].weight.sum().item)]
        values.append(ask(torch.nonzero(counts > 1).tolist))
    return values


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), nn.Linear(3, 1))


class Asking:
    """Asks for values, and interrupts some of the answers."""

    def __init__(self):
        self.n_interrupts = 0

    def __call__(self, read):
        if random.random() < 0.5:
            return read()
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, SECONDS))
            while True:  # until it comes
                read()
                time.sleep(0)
        except KeyboardInterrupt:
            self.n_interrupts += 1
        return read()


CHECKED = frozenset({"CALL", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD"})
"""Instructions after which Python looks for an interrupt."""


@functools.cache
def moments_of(code: CodeType) -> frozenset[int]:
    """Return the instructions of a function before which an interrupt may come.

    Not one that another handler of errors covers than the instruction before: there
    Python would leave a ``with`` block, and an error of a trace function would not.
    """
    parts = dis._parse_exception_table(code)
    steps = [*dis.get_instructions(code)]
    return frozenset(
        after.offset
        for before, after in pairwise(steps)
        if before.opname in CHECKED
        and not any(
            (p.start <= before.offset < p.end) != (p.start <= after.offset < p.end)
            for p in parts
        )
    )


class AskingAt:
    """Asks for values, and interrupts one answer at the n-th moment in some files."""

    def __init__(self, files, number=0):
        self.n_moments, self.n_interrupts = 0, 0
        self._files, self._number = files, number

    def __call__(self, read):
        if self.n_interrupts:
            return read()
        sys.settrace(self._enter)
        try:
            value = read()
            while self.n_interrupts:  # until it comes
                time.sleep(0)
        except KeyboardInterrupt:
            return read()
        finally:
            sys.settrace(None)
        return value

    def _enter(self, frame, _event, _):
        file = frame.f_code.co_filename
        if "/meta_magic/" not in file or self._files not in file:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame, event, _):
        if event == "opcode" and frame.f_lasti in moments_of(frame.f_code):
            self.n_moments += 1
            if self.n_moments == self._number:
                self.n_interrupts = 1
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return self._step


def run(asking):
    """Return the values of a cell that was interrupted, and of a later one."""
    with record():
        model = build()
        values = train(model, asking)
    with record():
        values += [asking(model[2].weight.tolist), asking(torch.randn(2).tolist)]
    return values


def main(n_runs, files=None):
    interrupt = signal.default_int_handler
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.signal(signal.SIGINT, interrupt)
    model = build()
    wanted = [*train(model, lambda read: read()), model[2].weight.tolist()]
    wanted.append(torch.randn(2).tolist())
    torch.manual_seed(0)
    clean, found, n_interrupts = probe(), collections.Counter(), 0
    if files is not None:
        run(counting := AskingAt(files))
    torch.manual_seed(0)
    for _ in range(n_runs):
        asking = Asking()
        if files is not None:
            asking = AskingAt(files, random.randint(1, counting.n_moments))
        try:
            values = run(asking)
        except BaseException as error:  # whatever it is
            found[f"{type(error).__name__}: {error}"[:300]] += 1
            continue
        n_interrupts += asking.n_interrupts
        if values != wanted:
            found["other values"] += 1
        torch.manual_seed(0)
        if probe() != clean:
            found[f"{probe()} is not {clean}"] += 1
    print(n_interrupts, dict(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
