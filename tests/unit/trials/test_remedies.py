"""What would make a block fit is tried, and named with what it needs."""

import torch
from torch import nn

from meta_magic import record
from meta_magic.errors import TrialError
from meta_magic.trials.fit import fit_trace, try_alternatives

SAVED = {"checkpointing": 50, "bfloat16": 40, "8-bit": 30, "paged 8-bit": 35}


def need(choices):
    """Need 100, less what each choice saves; there is no SGD here, and no autocast."""
    if {*choices} & {"sgd", "autocast"}:
        raise TrialError
    return 100 - sum(SAVED.get(name, 0) for name in choices)


def say(remedies):
    return [(remedy.choices, remedy.peak_nbytes) for remedy in remedies]


def test_each_choice_that_is_enough_by_itself():
    found = try_alternatives(need, 62, ())
    assert say(found) == [(("checkpointing",), 50), (("bfloat16",), 60)]


def test_as_few_together_as_are_enough():
    assert say(try_alternatives(need, 15, ())) == [(("checkpointing", "bfloat16"), 10)]


def test_if_none_are_enough_all_that_help():
    best = ("checkpointing", "bfloat16", "paged 8-bit")
    assert say(try_alternatives(need, -30, ())) == [(best, -25)]


def test_what_is_chosen_anyway_has_no_alternatives():
    found = try_alternatives(need, 66, ["8-bit"])
    assert say(found) == [(("checkpointing",), 50), (("bfloat16",), 60)]


def test_where_no_choice_can_be_made_there_is_none():
    def refuse(_):
        raise TrialError

    assert try_alternatives(refuse, 1, ()) == ()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


def record_training(batch, width=1024):
    with record() as trace:
        model = nn.Sequential(nn.Sequential(*(Block(width) for _ in range(8))))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(batch, width)).sum().backward()
        optimizer.step()
    return trace


def test_a_batch_that_never_fits_says_what_would_make_it_fit():
    # 8 blocks save 5 x 1,024 numbers of 4 bytes a row, 21 GB, where there are 16 GB;
    # checkpointed they save 1,024 each, and all of the one that is computed again.
    batch = 1 << 17
    trace = record_training(batch)
    fit = fit_trace(trace, "t4", {"batch": [batch, 2 * batch]}, suggest=True)
    assert fit.largest == {"batch": 0}
    best = fit.remedies[0]
    assert best.choices == ("checkpointing",)
    again = fit_trace(trace, "t4", choices=best.choices)
    assert best.peak_nbytes == again.peak_nbytes <= fit.nbytes < fit.peak_nbytes
    assert f"none fits, {batch} takes " in str(fit)
    assert "\n  it would fit: " in str(fit)
    assert " with checkpointing" in str(fit)


def test_where_nothing_helps_it_says_what_is_still_needed():
    rows = 5 * 10**9
    with record() as trace:
        kept = torch.ones(rows, dtype=torch.float32)
    del kept
    fit = fit_trace(trace, "t4", suggest=True)
    assert "\n  still 18.6 GiB with " in str(fit)


def test_what_fits_is_not_tried_otherwise():
    assert fit_trace(record_training(8), "t4", suggest=True).remedies == ()


def test_nothing_is_tried_unless_asked():
    trace = record_training(1 << 17)
    assert fit_trace(trace, "t4").remedies == ()
