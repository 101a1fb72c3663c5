"""Interrupt replays at random moments, and compare later values with the CPU's.

``python value_storm.py 40`` trains 40 times for real and recorded. While the recorded
cell asks for a value it is interrupted, swallows that, and asks again. Prints how often
it was interrupted, and what was wrong: another value, another error, a changed mode.
Run it in a process of its own.
"""

import collections
import random
import signal
import sys
import time

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


def run():
    """Return the values of a cell that was interrupted, and of a later one."""
    asking = Asking()
    with record():
        model = build()
        values = train(model, asking)
    with record():
        values += [asking(model[2].weight.tolist), asking(torch.randn(2).tolist)]
    return values, asking.n_interrupts


def main(n_runs):
    interrupt = signal.default_int_handler
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.signal(signal.SIGINT, interrupt)
    model = build()
    wanted = [*train(model, lambda read: read()), model[2].weight.tolist()]
    wanted.append(torch.randn(2).tolist())
    torch.manual_seed(0)
    clean, found, n_interrupts = probe(), collections.Counter(), 0
    for _ in range(n_runs):
        try:
            values, number = run()
        except BaseException as error:  # whatever it is
            found[f"{type(error).__name__}: {error}"[:300]] += 1
            continue
        n_interrupts += number
        if values != wanted:
            found["other values"] += 1
        torch.manual_seed(0)
        if probe() != clean:
            found[f"{probe()} is not {clean}"] += 1
    print(n_interrupts, dict(found))


if __name__ == "__main__":
    random.seed(int(sys.argv[2]) if len(sys.argv) > 2 else None)
    main(int(sys.argv[1]))
