"""Recorded ranks hold and send what real processes do; all scripts by ``worlds``."""

from subprocess import CalledProcessError

import pytest

from tests.conformance.worlds import compare

pytest.importorskip("torch.distributed.fsdp", reason="no torch.distributed")
N_RUNS = 3
"""On a busy machine a real rank may hold what it sends for longer than another time."""

NAMES = ("ddp_features", "joined", "two_dimensions", "pipeline")


@pytest.mark.usefixtures("forked_pythons")
@pytest.mark.parametrize("name", NAMES)
def test_each_rank_holds_and_sends_what_its_real_process_does(name):
    for _ in range(N_RUNS):
        try:
            found = compare(name, 4 if name == "two_dimensions" else 2)
        except CalledProcessError as error:  # torchrun did not get its processes
            found = error
            continue
        assert [one.error for one in found] == [None] * len(found)
        assert [one.sent for one in found] == [one.real_sent for one in found]
        if [one.peak for one in found] == [one.real_peak for one in found]:
            return
    pytest.fail(f"{N_RUNS} real runs failed, or had other peaks: {found}")
