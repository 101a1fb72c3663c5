"""On a GPU: replay draws what eager construction there draws."""

import pytest
import torch
from torch import nn

import meta_magic as mm

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device"
)


class Reseeded(nn.Module):
    """Seeds, forks and draws in its constructor."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(33, 17)
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.second = nn.Conv2d(3, 8, 3)
        self.third = nn.Embedding(11, 7)
        self.register_buffer("constant", torch.tensor([1.0, 2.0]) * 3)
        self.register_buffer("drawn", torch.randperm(10))


BUILDS = {
    "linear": lambda: nn.Linear(37, 53),
    "transformer": lambda: nn.TransformerEncoderLayer(32, 4, 64),
    "lstm": lambda: nn.LSTM(8, 16, 2),
    "trunc_normal": lambda: nn.init.trunc_normal_(nn.Linear(40, 30).weight, std=0.02),
    "reseeded": Reseeded,
    "bfloat16": lambda: nn.Linear(33, 17, dtype=torch.bfloat16),
}


def build_eagerly(build):
    torch.manual_seed(7)
    with torch.device("cuda"):
        return as_module(build())


def as_module(built):
    return built if isinstance(built, nn.Module) else nn.ParameterList([built])


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_a_module_replayed_on_cuda_is_the_one_built_there(build):
    eager = build_eagerly(build)
    torch.manual_seed(7)
    with mm.record():
        module = as_module(build())
    report = mm.materialize(module, "cuda")
    expected, made = eager.state_dict(), module.state_dict()
    assert report.device.type == "cuda"
    assert {n: t.device.type for n, t in made.items()} == dict.fromkeys(made, "cuda")
    assert [n for n in expected if not torch.equal(expected[n], made[n])] == []


def test_a_submodule_alone_has_on_cuda_what_it_has_within_the_whole():
    build = lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    eager = build_eagerly(build)
    torch.manual_seed(7)
    with mm.record():
        module = build()
    mm.materialize(module[1], "cuda")
    assert torch.equal(module[1].weight, eager[1].weight)
    assert module[0].weight.is_meta


def test_too_little_memory_on_cuda_is_an_error_with_both_numbers():
    with mm.record():
        module = nn.Linear(2_000_000, 2_000_000)
    with pytest.raises(mm.MaterializeError, match=r"14\.6 TiB.*is free"):
        mm.materialize(module, "cuda")
    assert module.weight.is_meta


def test_verify_on_cuda_finds_the_recorded_metadata():
    with mm.record() as trace:
        nn.Sequential(nn.Linear(8, 16), nn.ReLU())(torch.randn(4, 8)).sum().backward()
    differences = mm.verify(trace, "cuda")
    assert differences.attrs["n_checked"] == len(trace.ops)
    assert differences.empty
