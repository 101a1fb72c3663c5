"""Scripts of ``tests/js``: what the report's JavaScript makes of a trace."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

NODE = shutil.which("node")
SCRIPTS = Path(__file__).parent / "js"


def run_node(script, *arguments, given=b""):
    """Return the JSON that a script prints of its arguments and its input."""
    if NODE is None:
        pytest.skip("no Node.js on this machine")
    done = subprocess.run(
        [NODE, SCRIPTS / script, *arguments],
        input=given,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)
