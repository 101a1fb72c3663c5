import pytest

from meta_magic.check.records import Subject, read_subject
from meta_magic.errors import CheckError


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "intro.ipynb", "odd:name.py"):
        (tmp_path / name).touch()
    (tmp_path / "models").mkdir()


@pytest.mark.parametrize(
    ("text", "kind"),
    [("train.py", "script"), ("intro.ipynb", "notebook"), ("odd:name.py", "script")],
)
def test_a_file_is_a_script_or_a_notebook(text, kind, tmp_path):
    subject = read_subject(text)
    assert subject == Subject(name=text, kind=kind, path=(tmp_path / text).resolve())


def test_a_function_is_one_of_a_module():
    assert read_subject("pkg.models:Net.build") == Subject(
        name="pkg.models:Net.build",
        kind="function",
        module="pkg.models",
        function="Net.build",
    )


def test_a_function_may_be_one_of_a_file(tmp_path):
    subject = read_subject("train.py:step")
    assert (subject.path, subject.function) == ((tmp_path / "train.py"), "step")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nowhere.py", "there is no such file"),
        ("models", "it is a folder"),
        ("some/where.py:step", "there is no file 'some/where.py'"),
        ("pkg.models:", "there is no such file"),
        ("pkg.models:not a name", "there is no such file"),
    ],
)
def test_what_is_none_of_these_is_refused_with_the_reason(text, reason):
    with pytest.raises(CheckError, match=reason):
        read_subject(text)
