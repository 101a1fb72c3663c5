"""What a child does, done here, and undone."""

import sys

import pytest

from meta_magic.check.records import Request

SETTINGS = {"as_device": "cpu", "named": "plan", "assume": [], "check_values": False}


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """Return what makes requests, in a folder where files are written as named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = dict(sys.modules)

    def ask(subject, *, files, **options):
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        return Request(subject=subject, **{"settings": SETTINGS, **options})

    yield ask
    for name in {*sys.modules} - {*before}:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    sys.modules["__main__"] = before["__main__"]
