"""A module's settings in short, beside what it says of itself in full."""

import pytest
from torch import nn

from meta_magic import record
from meta_magic.view.details_payload import shorten_settings


class Attention(nn.Module):
    def __init__(self, dim, *, n_heads=8, dropout=0.0, is_causal=False, use_bias=True):
        super().__init__()
        self.dim, self.n_heads, self.dropout = dim, n_heads, dropout
        self.is_causal, self.use_bias, self.backend = is_causal, use_bias, None


class Named(nn.Module):
    def extra_repr(self):
        return "mode='a, b', window=(1, 2)\nis_odd=False"


def nothing_known():
    with record() as trace:
        named = Named()
    assert named is not None
    return trace.modules[0].definition


def shorten(make):
    with record() as trace:
        module = make()
    assert module is not None
    (node,) = trace.modules
    return shorten_settings(node.settings, node.definition)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: nn.BatchNorm2d(8), "8"),
        (lambda: nn.LayerNorm((4, 8)), "(4, 8)"),
        (lambda: nn.Linear(2, 3), "in_features=2, out_features=3"),
        (
            lambda: nn.Linear(2, 3, bias=False),
            "in_features=2, out_features=3, bias=False",
        ),
        (lambda: nn.Conv2d(3, 4, 3), "3, 4, kernel_size=(3, 3)"),
        (lambda: nn.Conv2d(3, 4, 3, 2), "3, 4, kernel_size=(3, 3), stride=(2, 2)"),
        (nn.Dropout, ""),
        (lambda: nn.ReLU(inplace=True), "inplace"),
    ],
)
def test_what_all_modules_of_a_class_have_by_default_is_left_out(make, text):
    assert shorten(make) == text


def test_the_defaults_of_a_base_are_known():
    assert shorten(lambda: nn.LSTM(3, 4)) == "3, 4"


def test_sizes_and_what_is_on_come_before_fractions():
    text = shorten(
        lambda: nn.LSTM(3, 4, 2, dropout=0.5, bidirectional=True, bias=False)
    )
    assert text == "3, 4, num_layers=2, bias=False, bidirectional, dropout=0.5"


def test_of_plain_attributes_what_is_off_is_left_out():
    assert shorten(lambda: Attention(64)) == "dim=64"
    text = shorten(lambda: Attention(64, n_heads=4, dropout=0.1, is_causal=True))
    assert text == "n_heads=4, dim=64, is_causal, dropout=0.1"


def test_what_a_class_says_is_kept_in_one_line():
    assert shorten(Named) == "mode='a, b', window=(1, 2) is_odd=False"


@pytest.mark.parametrize("text", ["", "a, b", "f(a, b", "x=1)], y", "=", "é=[1, 2]"])
def test_what_makes_no_sense_is_not_lost(text):
    assert shorten_settings(text, nothing_known()) == text


def test_the_settings_of_a_module_that_was_not_looked_at_stay_as_they_are():
    assert shorten_settings("a=1,\n  b=True", None) == "a=1, b=True"
