"""What is advised on real models: what they do waste, and nothing else."""

from pathlib import Path

import nbformat
import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.cost.advice.advisors import find_advice
from tests.benchmarks.models import CELLS

pytest.importorskip("transformers")

ADVISED = {
    # 1,024 tokens with dropout in attention, which no kernel of the CPU has; and their
    # activations are half of the peak.
    ("gpt2-training", "cpu"): {"activations", "attention"},
    # A head that is made to be tied; 8,192 tokens with all activations kept.
    ("01-quickstart", 2): {"tying"},
    ("01-quickstart", 6): {"activations"},
}
BOOKS = sorted(Path(__file__).parents[2].glob("notebooks/*.ipynb"))


def kinds_of(trace):
    return {advice.kind for advice in find_advice(trace)}


@pytest.mark.parametrize("as_device", ["cpu", "cuda"])
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_models_of_the_benchmarks(cell, as_device):
    with record(as_device=as_device) as trace:
        workload = cell.build()
        output = workload.run()
    del output
    assert kinds_of(trace) == ADVISED.get((cell.name, as_device), set())


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_cells_of_the_notebooks(path, shell):
    found = {}
    cells = [c for c in nbformat.read(path, as_version=4).cells if "source" in c]
    sources = [cell.source for cell in cells if cell.cell_type == "code"]
    for number, source in enumerate(sources, start=1):
        result = shell.run_cell(source)
        assert result.success
        if source.startswith("%%meta"):
            kinds = kinds_of(shell.user_ns["_meta"])
            found |= {(path.stem, number): kinds} if kinds else {}
    assert found == {k: v for k, v in ADVISED.items() if k[0] == path.stem}


def train(model, loss_of, n_steps=2):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(n_steps):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()


def train_t5():
    from transformers import T5Config, T5ForConditionalGeneration

    config = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    model = T5ForConditionalGeneration(
        T5Config(vocab_size=1000, decoder_start_token_id=0, **config)
    )
    ids = torch.randint(0, 1000, (2, 16))
    train(model, lambda m: m(input_ids=ids, labels=ids).loss)


def train_mixtral():
    from transformers import MixtralConfig, MixtralForCausalLM

    config = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4}
    model = MixtralForCausalLM(MixtralConfig(vocab_size=500, **config, **heads))
    ids = torch.randint(0, 500, (2, 16))
    train(model, lambda m: m(ids, labels=ids).loss)


def decode_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=500, **config, **heads)).eval()
    ids = torch.randint(0, 500, (1, 8))
    model.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None)


def train_translator():
    model = nn.Transformer(64, 4, 2, 2, 128, batch_first=True)
    x = torch.randn(2, 16, 64)
    train(model, lambda m: m(x, x).square().mean())


def train_recurrent():
    embed, lstm = nn.Embedding(1000, 32), nn.LSTM(32, 32, 2, bidirectional=True)
    model = nn.ModuleList([embed, lstm])
    ids = torch.randint(0, 1000, (20, 4))
    train(model, lambda _: lstm(embed(ids))[0].square().mean())


def train_sparse():
    embed = nn.Embedding(100, 16, sparse=True)
    optimizer = torch.optim.SparseAdam(embed.parameters())
    for _ in range(2):
        embed(torch.randint(0, 100, (8,))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def train_by_closure():
    model, x = nn.Linear(64, 10), torch.randn(8, 64)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def evaluate():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    optimizer.step(evaluate)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "run",
    [
        *(train_t5, train_mixtral, decode_llama, train_translator, train_recurrent),
        *(train_sparse, train_by_closure),
    ],
    ids=lambda run: run.__name__,
)
def test_scripts_that_are_right(run):
    with record(as_device="cpu") as trace:
        run()
    assert kinds_of(trace) == set()
