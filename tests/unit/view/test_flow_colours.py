"""The hues of the flow can be told apart, also by who sees no red, green or blue."""

import re
from itertools import combinations

import numpy as np
import pytest

from meta_magic.view.scripts import STATIC

CSS = (STATIC / "flow.css").read_text("utf-8")
HUES = re.findall(r"mm-family-(\w+) \{ --mm-hue: light-dark\((#\w+), (#\w+)\)", CSS)
"""Family, and its colour on a light and on a dark ground."""

GROUNDS = {"light": "#ffffff", "dark": "#111111"}
LEAST_CONTRAST = 3
"""Of what is drawn, as WCAG 2.2 has it (1.4.11)."""

LEAST_DISTANCE = 0.07
"""In OKLab, whose distance from black to white is 1."""

# Of severity 1: Machado, Oliveira and Fernandes, "A Physiologically-based Model for
# Simulation of Color Vision Deficiency", 2009, table 1.
SIGHTS = {
    "all": np.eye(3),
    "no red": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no blue": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}

# Source: https://bottosson.github.io/posts/oklab
TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def read_linear(color):
    values = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    low = values / 12.92
    return np.where(values <= 0.04045, low, ((values + 0.055) / 1.055) ** 2.4)


def find_lab(color, sight):
    seen = np.clip(np.array(SIGHTS[sight]) @ read_linear(color), 0, 1)
    return TO_LAB @ np.cbrt(TO_CONES @ seen)


def list_colors(scheme):
    return {family: (light, dark)[scheme == "dark"] for family, light, dark in HUES}


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("scheme", GROUNDS)
def test_any_two_hues_are_told_apart(scheme, sight):
    seen = {f: find_lab(c, sight) for f, c in list_colors(scheme).items()}
    assert len(seen) == 9
    distances = {
        (a, b): np.linalg.norm(seen[a] - seen[b]) for a, b in combinations(seen, 2)
    }
    assert min(distances.values()) > LEAST_DISTANCE, min(distances, key=distances.get)


@pytest.mark.parametrize("scheme", GROUNDS)
def test_a_hue_is_seen_on_its_ground(scheme):
    def find_luminance(color):
        return read_linear(color) @ [0.2126, 0.7152, 0.0722] + 0.05

    ground = find_luminance(GROUNDS[scheme])
    for color in list_colors(scheme).values():
        pair = sorted([find_luminance(color), ground])
        assert pair[1] / pair[0] >= LEAST_CONTRAST
