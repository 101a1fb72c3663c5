"""The names that users rely on."""

import subprocess
import sys
import tomllib

import pytest

import meta_magic
from tests.house import ROOT


def test_the_public_names_are_these():
    assert meta_magic.__all__ == [
        "Cost",
        "Device",
        "DeviceTableError",
        "ExerciseError",
        "FilledTensor",
        "MaterializeError",
        "MaterializeReport",
        "MetaMagicError",
        "MissingValueError",
        "MixedDeviceError",
        "ModuleCall",
        "ModuleNode",
        "ModuleTensor",
        "Note",
        "OpCall",
        "ReplayError",
        "Roofline",
        "Sent",
        "SourcePosition",
        "TensorMetadata",
        "Trace",
        "TrialError",
        "UnfinishedTraceError",
        "UnknownDeviceError",
        "UnknownOperator",
        "ValueLimits",
        "Work",
        "World",
        "WorldError",
        "add_devices",
        "diff",
        "exercise",
        "flop_formula",
        "grade",
        "load_ipython_extension",
        "materialize",
        "meta_like",
        "real",
        "record",
        "record_ranks",
        "replay",
        "sweep_figure",
        "sweep_ranks",
        "unload_ipython_extension",
        "verify",
    ]


@pytest.mark.parametrize("name", meta_magic.__all__)
def test_each_public_name_can_be_had_and_says_what_it_is(name):
    assert getattr(meta_magic, name).__doc__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'recrod'"):
        _ = meta_magic.recrod


def test_dir_lists_the_public_names():
    assert dir(meta_magic) == meta_magic.__all__


def test_importing_the_package_imports_neither_torch_nor_what_draws():
    code = "import meta_magic, sys; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    heavy = {"torch", "pandas", "plotly", "ipywidgets", "IPython", "anywidget"}
    assert heavy.isdisjoint(run.stdout.split())


def test_materializing_imports_nothing_of_torch_distributed_that_torch_does_not():
    code = """import meta_magic as mm, sys, torch
before = {*sys.modules}
with mm.record():
    model = torch.nn.Linear(2, 2)
mm.materialize(model)
print(*{*sys.modules} - before)"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    heavy = "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch._dynamo"
    assert not [name for name in run.stdout.split() if name.startswith(heavy)]


def test_every_error_is_a_meta_magic_error():
    assert issubclass(meta_magic.MixedDeviceError, meta_magic.MetaMagicError)
    assert issubclass(meta_magic.UnfinishedTraceError, meta_magic.MetaMagicError)


def test_record_is_the_function_also_after_a_cell_has_run(shell):
    shell.run_cell("%%meta -q\ntorch.ones(2)").raise_error()
    shell.run_cell("import meta_magic as mm\nwith mm.record() as t: torch.ones(2)")
    assert len(shell.user_ns["t"]) == 1


def test_the_citation_names_the_version_that_is_built():
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text("utf-8"))
    citation = (ROOT.parent / ".github" / "CITATION.cff").read_text("utf-8")
    assert f"version: {project['project']['version']}\n" in citation
