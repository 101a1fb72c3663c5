"""Panels of small models, and what a front end sends to them."""

import json

import torch
from torch import nn

from meta_magic import record
from meta_magic.view.widgets import show_report

CHOICE = {
    "root": 0,
    "path": "",
    "device": "cpu",
    "init": "replay",
    "dtype": "as built",
    "values": "as after the cell",
    "checkpoint": "",
}
SCRIPT = "<img src=x onerror=alert(1)>"
TIMEOUT = 30


def send(panel, kind, **fields):
    """Send what the front end sends."""
    message = {"kind": kind, "choice": {**CHOICE, **fields}}
    panel._handle_custom_msg(json.loads(json.dumps(message)), [])


def run(panel, **fields):
    """Click Materialize, and wait for the end."""
    send(panel, "start", **fields)
    panel.wait(TIMEOUT)


def record_model(build=lambda: nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))):
    """Return a module that was built on meta with seed 0, and a panel for it."""
    with record() as trace:
        torch.manual_seed(0)
        model = build()
    return model, show_report(trace)
