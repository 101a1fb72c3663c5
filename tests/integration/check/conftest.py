"""The command, run in a folder of its own."""

import pytest

from meta_magic.check.commands import main


@pytest.fixture
def check(check_apart, forked_pythons):
    """The same, without a new Python for each file."""
    return check_apart


@pytest.fixture
def check_apart(tmp_path, monkeypatch, capsys):
    """Run ``meta-magic check`` on files that are given as texts.

    Returns the exit code and what was printed.
    """
    monkeypatch.chdir(tmp_path)

    def run(*words, **files):
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        code = main(["check", *map(str, words)])
        return code, "".join(capsys.readouterr())

    return run
