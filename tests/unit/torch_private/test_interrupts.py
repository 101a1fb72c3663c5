"""An interrupt waits where it would break what runs, and is delivered after that."""

import signal
import sys

import pytest
import torch

from meta_magic import record
from meta_magic.torch_private.interrupts import Interrupts, must_wait, uninterrupted
from meta_magic.torch_private.snapshot import RealTorch


def ask_in(entry, name):
    """Return whether interrupts wait in each function of a name that runs."""
    found = []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_name == name:
            found.append(must_wait(frame))

    sys.setprofile(note)
    try:
        entry()
    finally:
        sys.setprofile(None)
    return found


def enter_no_grad():
    with torch.no_grad():
        pass


@pytest.mark.parametrize("name", ["__enter__", "__exit__"])
def test_an_interrupt_waits_in_the_entry_and_exit_of_torchs_contexts(name):
    assert ask_in(enter_no_grad, name) == [True]


@pytest.mark.parametrize(("file", "waits"), [(torch.__file__, True), ("cell", False)])
@pytest.mark.parametrize("how", ["import asks", "from importlib import *\n{}('asks')"])
def test_an_interrupt_waits_while_torch_imports(
    file, waits, how, tmp_path, monkeypatch
):
    (tmp_path / "asks.py").write_text(
        "import sys\nfrom meta_magic.torch_private.interrupts import must_wait\n"
        "answer = must_wait(sys._getframe())"
    )
    monkeypatch.syspath_prepend(tmp_path)
    exec(compile(how.format("import_module"), file, "exec"), {})
    assert sys.modules.pop("asks").answer is waits


def test_an_interrupt_does_not_wait_in_the_users_code():
    assert not must_wait(sys._getframe())


@pytest.mark.parametrize("name", ["override_kernels", "_end", "_init"])
def test_an_interrupt_waits_where_autocast_is_made_to_cast_on_meta(name):
    def cast():
        with record(), torch.autocast("cpu"):
            pass

    assert set(ask_in(cast, name)) == {True}


def test_an_interrupt_waits_in_what_must_not_be_broken():
    assert uninterrupted(lambda: must_wait(sys._getframe()))()


def test_an_interrupt_that_was_held_is_delivered_at_the_end():
    interrupts = Interrupts()
    interrupts.is_held = True
    interrupts.own()
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        interrupts.give_back()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_in_real_torch_leaves_gradients_as_they_were():
    with pytest.raises(KeyboardInterrupt), RealTorch():
        signal.raise_signal(signal.SIGINT)
    assert torch.is_grad_enabled()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("name", ["_find_writers", "update"])
def test_an_interrupt_waits_where_what_is_known_of_a_program_grows(name):
    def ask():
        with record():
            x = torch.ones(2)
            x.tolist(), x.add_(1).tolist()

    waits = ask_in(ask, name)
    assert waits
    assert all(waits)
