"""What a loop with values leaves in memory."""

import tracemalloc

import torch

from meta_magic import record


def grow_by(n_steps, read):
    """Return the bytes that a step of a loop leaves."""
    tracemalloc.start()
    try:
        with record():
            x = torch.ones(4)
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(n_steps):
                for _ in range(20):
                    x.add_(1)
                read(x)
            return (tracemalloc.get_traced_memory()[0] - before) / n_steps
    finally:
        tracemalloc.stop()


def test_a_loop_with_values_does_not_copy_the_trace_for_each():
    for _ in range(2):  # the first time more is met that stays
        with_values = grow_by(200, lambda x: x[0].item())
        without = grow_by(200, lambda x: x[0])
    # A copy of the trace is as large as that.
    assert with_values < 2 * without
