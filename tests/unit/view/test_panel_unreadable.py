"""The Materialize panel beside a tensor whose own class raises."""

import pytest
import torch
from torch import nn

from meta_magic.view.widgets import close_reports
from tests.unit.view.panels import record_model, run, send


@pytest.fixture(autouse=True)
def no_panel_is_left():
    yield
    close_reports()


class Unreadable(torch.Tensor):
    """Cannot be asked where it is while a module is as ``while_on_meta`` says."""

    @property
    def is_meta(self):
        if self.module.weight.is_meta is self.while_on_meta:
            raise ValueError("no luck")
        return False


def make_unreadable(module, *, while_on_meta):
    """Return a tensor that cannot be read while a module is on meta, or is real."""
    tensor = torch.ones(2).as_subclass(Unreadable)
    tensor.module, tensor.while_on_meta = module, while_on_meta
    return tensor


def test_a_choice_that_cannot_be_looked_into_is_answered():
    model, panel = record_model(lambda: nn.Linear(2, 3))
    model.odd, answers = make_unreadable(model, while_on_meta=True), []
    panel.send = lambda content, *_: answers.append(content)
    send(panel, "choose")
    assert panel.message == "ValueError: no luck"
    assert answers == [{"kind": "answer"}]


def test_what_cannot_be_looked_into_at_the_end_is_real_nevertheless():
    model, panel = record_model(lambda: nn.Linear(2, 3))
    model.odd = make_unreadable(model, while_on_meta=False)
    run(panel)
    assert panel.state == "done"
    assert not model.weight.is_meta
