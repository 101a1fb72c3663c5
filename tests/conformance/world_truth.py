"""What one real process of a world holds: ``torchrun world_truth.py SCRIPT OUT``.

Writes to ``OUT.<rank>.json`` the bytes alive after each operator, and each collective
with its group, bytes, dtype and reduction. Nothing is recorded.
"""

import json
import os
import runpy
import sys
from pathlib import Path

import torch

from meta_magic.trials.rank_runs import RealRank


def main(script, out):
    """Run a script, and write what it held and sent."""
    torch.set_num_threads(1)
    sys.argv = [script]
    sys.path.insert(0, str(Path(script).parent))
    with RealRank() as real:
        runpy.run_path(script, run_name="__main__")
    sent = [sent[:-1] for sent in real.sent]
    found = {"timeline": real.live_nbytes, "sent": sent}
    Path(f"{out}.{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
