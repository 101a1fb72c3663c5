"""What is said of a torch that is newer than those that the tests ran on."""

import pytest


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return what puts the metadata of another torch before those of ours."""

    def put(version):
        home = tmp_path / f"torch-{version}.dist-info"
        home.mkdir()
        (home / "METADATA").write_text(f"Name: torch\nVersion: {version}\n")
        monkeypatch.syspath_prepend(tmp_path)

    return put


@pytest.mark.parametrize("version", ["2.99.0", "3.0.0+cu132", "2.100.0a0+git1a2b"])
def test_a_newer_torch_gets_one_line_and_works(shell, capsys, install, version):
    install(version)
    shell.run_cell("%reload_ext meta_magic").raise_error()
    said = capsys.readouterr()
    line = "meta_magic was tested with torch up to 2.15; this is "
    assert (said.out, said.err) == (f"{line}{version}.\n", "")
    assert shell.run_cell("%%meta -q\ntorch.ones(2).is_meta").result


@pytest.mark.parametrize("version", ["2.15.1", "2.9.0"])
def test_of_a_torch_that_is_no_newer_nothing_is_said(shell, capsys, install, version):
    install(version)
    shell.run_cell("%reload_ext meta_magic").raise_error()
    assert capsys.readouterr().out == ""
