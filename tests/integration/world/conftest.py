"""What the tests of worlds share."""

import pytest


@pytest.fixture(autouse=True)
def _forked_pythons(forked_pythons):
    pass


@pytest.fixture
def script(tmp_path):
    """Write the text of a script; return its path."""

    def write(text):
        path = tmp_path / "train.py"
        path.write_text(text, "utf-8")
        return path

    return write
