"""The package uses the words of the glossary, and none that they replaced.

A retired word is found in names (also within ``snake_case`` and ``CamelCase``), in
docstrings, comments and messages. In the patterns a space is any separator.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [
    ROOT / "README.md",
    ROOT / ".github/CONTRIBUTING.md",
    *sorted(ROOT.glob("meta_magic/**/*.py")),
    *sorted(ROOT.glob("meta_magic/**/*.js")),
]

RETIRED = {
    "serves?|served|serving": "fast path, cache hit, answer",
    "lent|lends?|lending|loans?": "borrowed",
    "lifts?|lifted|lifting": "capture, captured constant",
    "tells?|told|telling": "say, report, distinguish; reported",
    "met|meets?|meeting": "seen, see, receive, reach, find",
    "living": "live",
    "followers?|behind": "dependents, after",
    "doubts?": "caveat",
    "findings": "diagnostics",
    "remarks?": "note, caveat",
    "stand ins?|stands in": "proxy tensor, replacement",
    "(has|no|own|other|which|cpu's|torch's) words?": "message, text",
    r"left (over|by|behind|places?)": "carried over",
    r"left_(?!aligned|open|shift|to_right)\w+": "carried over",
    "places?": "call site (of source), placement or planned device (of a tensor)",
}
"""Retired words, and what is said instead."""

ALLOWED = (
    "(in|out of) place",
    "in (the|its|their) place",
    "(takes?|took|taking|taken) (the|its|their) place",
    # Public names: a column, a kind of note, and what tensors, calls and modules have.
    '"place"|peak by place|def places?|place: "?(device that|torch.device)',
    r"place=(geometry|none if geometry)|(tensor|t|self|root|nodes\[0\])\.places?",
    # Operators of torch, and a textbook.
    r"lift fresh|copy from and resize lift|van loan",
)
"""Uses that are right."""

KEYS = {
    "findings": ("meta_magic/check/outputs.py",),
    "place": (
        "meta_magic/cost/memory_",
        "meta_magic/trials/fit.py",
        "meta_magic/view/choices.py",
        "meta_magic/view/payload.py",
        "meta_magic/view/static/",
        "meta_magic/view/widgets.py",
    ),
    "remarks": ("meta_magic/view/payload.py", "meta_magic/view/static/data.js"),
}
"""Keys of a payload and public attributes, and the files that have them."""


def compile_words(words):
    """Return the pattern that finds words in text as ``find_words`` changes it."""
    separated = words.replace(" ", r"[-_\s#*`]+")
    return re.compile(rf"(?<![a-z])(?:{separated})(?![a-z])")


PATTERNS = {compile_words(words): instead for words, instead in RETIRED.items()}
RIGHT = compile_words("|".join(ALLOWED))


def find_words(text):
    """Yield line, retired word, and what is said instead."""
    text = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower()
    text = RIGHT.sub(lambda match: "\n" * match[0].count("\n"), text)
    for pattern, instead in PATTERNS.items():
        for match in pattern.finditer(text):
            yield text.count("\n", 0, match.start()) + 1, match[0], instead


def name_of(path):
    """Return a file's path within the repository."""
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_uses_no_retired_word(path):
    name = name_of(path)
    keys = [key for key, files in KEYS.items() if name.startswith(files)]
    found = find_words(path.read_text("utf-8"))
    assert [one for one in found if not one[1].startswith(tuple(keys))] == []


@pytest.mark.parametrize(
    "text", ["is_told", "ToldAttributes", "left_places", "# it was met\n", "a stand-in"]
)
def test_a_retired_word_is_found_in_names_and_prose(text):
    assert [*find_words(text)]


@pytest.mark.parametrize("text", ["metadata", "add_ in\n    # place", "placement"])
def test_a_right_word_is_not_taken_for_a_retired_one(text):
    assert not [*find_words(text)]
