"""Which frames of an error its reader sees; the others hide from pytest."""

import sysconfig
from pathlib import Path

import pytest
import torch

from meta_magic import record
from meta_magic.session.raised_calls import choose_frames

TORCH = f"{Path(torch.__file__).parent}/nn/a.py"
PACKAGES = sysconfig.get_paths()["purelib"]
LIBRARY = f"{PACKAGES}/library/part/b.py"


def raise_through(*files, error):
    """Return an error that came up through functions of files, the outermost first."""

    def fail():
        raise error

    call = fail
    for file in reversed(files):
        names = {"inner": call}
        exec(compile("def call():\n    inner()", file, "exec"), names)
        call = names["call"]
    with pytest.raises(type(error)) as caught:
        call()
    return caught.value.with_traceback(caught.tb.tb_next)


def shown_of(error):
    entries, folded = choose_frames(error, error.__traceback__)
    own = {__file__: "user's", TORCH: "torch's", LIBRARY: "library's"}
    return [own[e.tb_frame.f_code.co_filename] for e in entries], list(folded)


class Said(Exception):
    """An error of this file's."""


@pytest.mark.parametrize(
    ("files", "shown", "folded"),
    [
        ((TORCH, TORCH), ["user's"], ["torch", "torch"]),
        ((TORCH, LIBRARY), ["user's"], ["torch", "library"]),
        ((LIBRARY, LIBRARY), ["library's", "library's", "user's"], []),
    ],
)
def test_frames_above_the_users_last_one_are_folded_with_those_of_torch(
    files, shown, folded
):
    assert shown_of(raise_through(*files, error=Said("text"))) == (shown, folded)


@pytest.mark.parametrize(
    ("text", "shown"), [("text", ["library's"]), ("", ["torch's"])]
)
def test_of_an_error_without_a_text_the_frame_that_raised_it_is_shown(text, shown):
    error = raise_through(LIBRARY, TORCH, error=Said(text))
    last = error.__traceback__
    while last.tb_next.tb_next is not None:
        last = last.tb_next
    last.tb_next = None  # as if torch itself had raised it
    assert shown_of(error)[0] == shown


def visible(caught):
    """Return the file of each frame that pytest would show."""
    return [str(entry.path) for entry in caught.traceback.filter(caught)]


def test_pytest_shows_the_users_line_alone_of_what_torch_refused():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3))
    with pytest.raises(RuntimeError) as caught, record():
        model(torch.ones(5))
    assert visible(caught) == [__file__]
