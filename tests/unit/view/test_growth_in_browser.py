"""What the browser makes of a growth, beside what Python and recordings say."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.cost.device_table import list_devices
from meta_magic.cost.memory_samples import take_sample
from meta_magic.trials.fit import find_fitting
from meta_magic.trials.recordings import Recordings
from meta_magic.view.fits_of_sizes import FitsOf
from tests.unit.view.panels import TIMEOUT

NODE = shutil.which("node")
DUMP = Path(__file__).parents[2] / "js" / "growth_dump.mjs"
SIZES = (1, 5, 64, 100, 777, 12_345, 1_000_003)
ROOMS = tuple(sorted({device.nbytes for device in list_devices() if device.nbytes}))

pytestmark = pytest.mark.skipif(NODE is None, reason="no Node.js on this machine")


def attend(batch, length, width=64):
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
    optimizer = torch.optim.AdamW(layer.parameters())
    for _ in range(2):
        layer(torch.ones(batch, length, width)).sum().backward()
        optimizer.step()


def record_attention(batch=4, length=32):
    with record() as trace:
        attend(batch, length)
    return trace


@pytest.fixture(scope="module", params=["batch", "length"])
def worked_out(request):
    """Return the name of a size, what Python knows, and what the browser does."""
    trace, told, name = record_attention(), {}, request.param
    fits = FitsOf(trace, lambda **traits: told.update(traits))
    fits.receive({"name": name, "choices": [], "device": "t4"})
    fits.wait(TIMEOUT)
    sent = {
        "growth": told["growths"][0],
        "stretches": told["stretches"][name],
        "sizes": SIZES,
        "rooms": ROOMS,
    }
    done = subprocess.run(
        [NODE, DUMP], input=json.dumps(sent).encode(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return name, trace, json.loads(done.stdout)


def test_peaks_are_those_of_all_calls_within_rounding(worked_out):
    name, trace, found = worked_out
    known = find_fitting(Recordings(trace), name, ROOMS[0]).interpolation
    for size, peak in zip(SIZES, found["peaks"], strict=True):
        assert abs(peak - known.peak_nbytes(size)) <= 1


def test_the_largest_sizes_are_those_of_python(worked_out):
    name, trace, found = worked_out
    recordings = Recordings(trace)
    expected = [find_fitting(recordings, name, room).largest for room in ROOMS]
    assert found["largest"] == expected


def test_the_stretches_are_those_of_a_recording_there(worked_out):
    name, _, found = worked_out
    for size in (5, 64, 777):
        sample = take_sample(record_attention(**{name: size}))
        assert found["stretches"][SIZES.index(size)] == [*sample.stretches]
