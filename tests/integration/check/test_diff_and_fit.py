"""``meta-magic diff`` and ``meta-magic fit``: of scripts, functions and configs."""

import json
import subprocess

import pytest
import torch

from meta_magic import record
from meta_magic.check.commands import main
from meta_magic.check.diff_and_fit import ADAPTERS, SCRIPTS
from meta_magic.trace.units import format_bytes

NET = """
from torch import nn
def build(width, depth):
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))
"""
TRAIN = """
import torch
from net import build
width = 8
model = build(width, depth=2)
model(torch.ones(4, width)).sum().backward()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch, forked_pythons):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def run(capsys, *line):
    code = main([*line])
    return code, *capsys.readouterr()


def test_two_scripts_are_compared(folder, capsys):
    other = folder / "other.py"
    other.write_text(TRAIN.replace("= 8", "= 16").replace("depth=2", "depth=3"))
    code, out, _ = run(capsys, "diff", "train.py", "other.py")
    assert code == 1
    head, first, second, *_ = out.splitlines()
    assert head.startswith("3 Linear instead of 2; width 8 -> 16; depth 2 -> 3; +672 ")
    assert first.startswith("~ model.0-1: 2 x Linear  in_features 8 -> 16")
    assert second.startswith("+ model.2: Linear")
    code, out, _ = run(capsys, "diff", "train.py", "train.py", "--json")
    assert (code, json.loads(out)["changes"]) == (0, [])


def git(*line):
    me = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    subprocess.run(["git", *me, *line], check=True, capture_output=True)


def test_a_script_is_compared_with_that_of_a_revision(folder, capsys):
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    changed = NET.replace(
        "nn.Linear(width, width)", "nn.Linear(width, width, bias=False)"
    )
    (folder / "net.py").write_text(changed)  # a module of the script, not the script
    code, out, _ = run(capsys, "diff", "train.py@HEAD", "train.py")
    assert code == 1
    assert "~ model.0-1: 2 x Linear  bias True -> False" in out
    code, _, error = run(capsys, "diff", "train.py@nowhere", "train.py")
    assert code == 2
    assert "nowhere" in error


def test_a_script_that_fails_cannot_be_compared(folder, capsys):
    (folder / "bad.py").write_text("import torch\ntorch.ones(2) @ torch.ones(3)\n")
    code, _, error = run(capsys, "diff", "train.py", "bad.py")
    assert code == 2
    assert "meta-magic diff: bad.py: line 2: RuntimeError" in error


def test_a_script_has_its_peak_and_accelerators(folder, capsys):
    code, out, _ = run(capsys, "fit", "train.py")
    assert code == 0
    width = 8
    with record() as trace:
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(2)))
        model(torch.ones(4, width)).sum().backward()
    row = out.splitlines()[0]
    assert row.split("  ")[0] == "as it is"
    assert format_bytes(trace.memory.peak_nbytes) in row
    assert "NVIDIA T4 (16 GB)" in row


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("missing.py", "missing.py: there is no such file"),
        ("missing.json", "missing.json: there is no such file"),
        ("net.py:absent", "net.py:absent: 'net' has no function 'absent'"),
        ("net.py:build", "missing a required argument: 'width'; give it arguments"),
        ("net.py", "net.py: it makes no tensor"),
        ("bad.py", "bad.py: line 2: RuntimeError"),
        ("other.json", "other.json: ValueError"),  # no line of a script of ours
    ],
)
def test_what_cannot_be_fitted_is_named_with_the_reason(folder, capsys, what, said):
    (folder / "bad.py").write_text("import torch\ntorch.ones(2) @ torch.ones(3)\n")
    (folder / "other.json").write_text('{"model_type": "frobnicate"}')
    code, out, error = run(capsys, "fit", what)
    assert (code, out) == (2, "")
    assert said in error


def test_a_config_is_trained_and_used(folder, capsys, monkeypatch):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
    )
    config.save_pretrained(folder)
    kept = ("adapters, checkpointing", "inference with a cache")
    scripts = {name: SCRIPTS[name] for name in kept}
    monkeypatch.setattr("meta_magic.check.diff_and_fit.SCRIPTS", scripts)
    code, out, _ = run(capsys, "fit", "config.json", "--length", "32")
    assert code == 0
    lines = out.splitlines()[: len(kept)]  # others are accelerate's
    assert [line.split("  ")[0] for line in lines] == [*kept]
    assert all("NVIDIA T4 (16 GB)" in line for line in lines)


def test_the_formulas_of_accelerate_stand_below_a_config(folder, capsys, monkeypatch):
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=512, n_layer=0, n_head=8, vocab_size=65_536)
    config.save_pretrained(folder)
    monkeypatch.setattr("meta_magic.check.diff_and_fit.SCRIPTS", {})
    code, out, _ = run(capsys, "fit", "config.json")
    assert code == 0
    # 130 MiB in float32: 65,536 tokens and 1,024 positions of 512 numbers; then a norm.
    # Adam's two states take twice that; with weights and gradients it is four times.
    sizes = {line[:30].rstrip(): line[30:41].strip() for line in out.splitlines()}
    assert sizes == {
        "accelerate: weights in float16": "65.0 MiB",
        "accelerate: Adam, float16": "260.0 MiB",
        "accelerate: Adam, float32": "520.0 MiB",
    }


def test_layers_of_gpt_2_get_adapters():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=100)
    made = {"model": transformers.GPT2LMHeadModel(config), "torch": torch}
    exec(ADAPTERS.replace('"cuda"', '"cpu"'), made)
    n_trained = sum(p.numel() for p in made["model"].parameters() if p.requires_grad)
    # Rank 16 for 64 to 192, 64 to 64, 64 to 256 and 256 to 64, in each of two layers.
    assert n_trained == 2 * 16 * (64 + 192 + 64 + 64 + 64 + 256 + 256 + 64)
    made["model"](torch.zeros(1, 8, dtype=torch.long)).logits.sum().backward()
