"""A recorded block runs again in a child, with nothing left of it but an answer."""

import os
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest
import torch
from torch import nn

from meta_magic import MetaMagicError, record
from meta_magic.errors import TrialError
from meta_magic.trials import trial
from meta_magic.trials.trial import ask_trial, ask_trials

WIDTH = 5


def count(trace, _variables):
    return len(trace)


def list_shapes(trace, _variables=None):
    return [call.outputs[0].shape for call in trace.ops]


def test_a_block_is_recorded_again_as_it_was_and_with_another_value():
    rows = 4
    with record() as trace:
        x = torch.ones(rows, WIDTH)
        x.sum(0)
    assert ask_trial(trace, list_shapes) == list_shapes(trace) == [(4, 5), (5,)]
    assert ask_trial(trace, list_shapes, {"rows": 9}) == [(9, 5), (5,)]
    assert rows == 4


def test_a_name_that_the_block_binds_has_another_value():
    with record() as trace:
        rows = 4
        torch.ones(rows, WIDTH)
    assert ask_trial(trace, list_shapes, {"rows": 9}) == [(9, 5)]


def make_row():
    return torch.ones(WIDTH)


def test_a_name_of_the_module_is_another_in_its_functions_too():
    with record() as trace:
        make_row()
        torch.ones(WIDTH, 1)
    assert ask_trial(trace, list_shapes, {"WIDTH": 3}) == [(3,), (3, 1)]
    assert WIDTH == 5


def test_variables_are_as_before_the_block():
    n, sizes = 1, [2]
    with record() as trace:
        n += 1
        sizes.append(n)
        torch.ones(sizes)
    assert ask_trial(trace, list_shapes) == [(2, 2)]
    assert (n, sizes) == (2, [2, 2])


def test_a_module_from_before_is_the_same():
    model = nn.Linear(3, 4)
    with record() as trace:
        model(torch.ones(2, 3))
    assert ask_trial(trace, list_shapes)[-1] == (2, 4)


def test_a_variable_that_is_gone_is_named():
    model = nn.Linear(3, 4)
    with record() as trace:
        model = nn.Sequential(model)
    del model
    with pytest.raises(TrialError, match="NameError: name 'model'"):
        ask_trial(trace, count)


def test_a_trace_keeps_no_module_of_the_block_alive():
    import weakref

    model = nn.Linear(3, 4)
    kept = weakref.ref(model)
    with record() as trace:
        model(torch.ones(2, 3))
    del model
    assert kept() is None
    assert trace.rerun is not None


def test_several_sizes_are_answered_in_order_each_with_its_own_error():
    rows = 4
    with record() as trace:
        torch.ones(rows).view(2, -1)
    found = ask_trials(trace, list_shapes, [{"rows": 2}, {"rows": 3}, {"rows": 6}])
    assert [found[0], found[2]] == [[(2,), (2, 1)], [(6,), (2, 3)]]
    assert isinstance(found[1], TrialError)
    assert "RuntimeError" in str(found[1])


# Side effects


def write_file(path):
    path.write_text("new", "utf-8")


def save_tensor(path):
    torch.save({"a": 1}, path)


def remove_file(path):
    path.unlink()


def start_process(_path):
    subprocess.run([sys.executable, "-c", ""], check=True)


def swallow(path):
    try:
        write_file(path)
    except BaseException:
        torch.ones(1)


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (write_file, "writes the file"),
        (save_tensor, "writes the file"),
        (remove_file, "changes files"),
        (start_process, "starts a process"),
        (swallow, "writes the file"),
    ],
)
def test_what_touches_the_world_is_refused_and_does_not(tmp_path, act, reason):
    path = tmp_path / "file"
    path.write_text("first", "utf-8")
    with record() as trace:
        act(path)
    path.write_text("old", "utf-8")
    with pytest.raises(TrialError, match=reason):
        ask_trial(trace, count)
    assert path.read_text("utf-8") == "old"


def test_what_it_prints_is_not_seen(capfd):
    with record() as trace:
        print("once")
        sys.stderr.write("once\n")
    capfd.readouterr()
    ask_trial(trace, count)
    assert capfd.readouterr() == ("", "")


def test_children_of_the_child_end_too():
    """The CPU is asked about large calls in one of its own."""
    here = os.getpid()
    others = list_children(here)  # of other tests

    def say_pid(trace, _variables):
        return os.getpid(), list_children(os.getpid())

    with record() as trace:
        torch.ones(2**24).view(-1, 2**12).sum(0)
        with suppress(RuntimeError):
            torch.ones(2**12, 2**11) @ torch.ones(2**12, 2**11)
    child, grandchildren = ask_trial(trace, say_pid)
    assert child != here
    assert grandchildren == []
    assert set(list_children(here)) <= set(others)


def list_children(pid):
    """Return the numbers of a process's children, its zombies left out."""
    children = psutil.Process(pid).children(recursive=True)
    return [p.pid for p in children if p.status() != psutil.STATUS_ZOMBIE]


# Bad blocks


def test_a_block_that_raises_says_what():
    rows = 3
    with record() as trace:
        torch.ones(rows, 2) @ torch.ones(2, 3)
        assert rows == 3, "three"
    with pytest.raises(TrialError, match="it raises AssertionError: three"):
        ask_trial(trace, count, {"rows": 4})


@pytest.mark.parametrize("text", ["while n < 5: n += 0", "import time; time.sleep(60)"])
def test_a_block_that_does_not_end_is_ended(tmp_path, text):
    n = 5
    with record() as trace:
        while n < 5 and text.startswith("while"):
            n += 0
        if n < 5:
            time.sleep(60)
    started = time.perf_counter()
    with pytest.raises(TrialError, match="more than 1 s"):
        ask_trial(trace, count, {"n": 4}, seconds=1)
    assert time.perf_counter() - started < 30


def test_a_block_of_exec_cannot_be_run_again():
    variables = {"record": record}
    exec("with record() as trace:\n    pass", variables)
    with pytest.raises(TrialError, match="is run again"):
        ask_trial(variables["trace"], count)


def leave_early(n):
    with record() as trace:
        if n:
            return trace
        torch.ones(2)
    return trace


def leave_at_the_end(n, traces):
    with record() as traces[0]:
        x = torch.ones(n)
        if n:
            return x + 1
    return None


def test_a_block_that_cannot_stand_alone_is_named():
    with pytest.raises(TrialError, match="'return' outside function"):
        ask_trial(leave_early(1), count)


def test_a_block_may_return_at_its_end():
    traces = [None]
    leave_at_the_end(3, traces)
    assert ask_trial(traces[0], count) == count(traces[0], {}) == 2


def test_without_forks_it_is_declined(monkeypatch):
    with record() as trace:
        pass
    monkeypatch.setattr(trial, "can_fork", lambda: False)
    with pytest.raises(MetaMagicError, match="no process can be forked"):
        ask_trial(trace, count)
