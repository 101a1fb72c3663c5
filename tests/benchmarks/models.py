"""The cells that the benchmarks run, built on the meta device from configurations."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

N_MLP_LAYERS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a cell runs, once its model is there.

    Attributes:
        model: The model, on the meta device.
        inputs: What its forward takes by position.
        run: The measured code: one forward, or one training step.
        is_forward: Whether ``run`` is just ``model(*inputs)`` without gradients, so
            that tools which call the model themselves do the same work.
    """

    model: nn.Module
    inputs: tuple[Tensor, ...]
    run: Callable[[], object]
    is_forward: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One row of the tables.

    Attributes:
        name: How the row is called, also on the command line.
        build: Makes the model and its inputs; call it under ``torch.device("meta")``.
    """

    name: str
    build: Callable[[], Workload]


def build_forward(model: nn.Module, *inputs: Tensor) -> Workload:
    """Return the workload of one forward in evaluation mode without gradients."""
    model.eval()

    @torch.no_grad()
    def run() -> object:
        return model(*inputs)

    return Workload(model=model, inputs=inputs, run=run, is_forward=True)


def build_tokens(n_tokens: int) -> Tensor:
    """Return one row of token numbers."""
    return torch.zeros(1, n_tokens, dtype=torch.long)


def build_gpt2() -> Workload:
    """GPT-2 with 124 million parameters, 1,024 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return build_forward(GPT2LMHeadModel(GPT2Config()), build_tokens(1024))


def make_llama_70b() -> nn.Module:
    """Return Llama-3-70B."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=8192,
    )
    model: nn.Module = LlamaForCausalLM(config)
    return model


def build_llama_70b() -> Workload:
    """Llama-3-70B, 8,192 tokens."""
    return build_forward(make_llama_70b(), build_tokens(8192))


def build_llama_70b_construction() -> Workload:
    """Llama-3-70B, made by what is measured."""
    model = make_llama_70b()
    return Workload(model=model, inputs=(), run=make_llama_70b, is_forward=False)


def build_mixtral() -> Workload:
    """Mixtral-8x7B, 4,096 tokens; in float32 its experts do not run on plain meta."""
    from transformers import MixtralConfig, MixtralForCausalLM

    model = MixtralForCausalLM(MixtralConfig()).bfloat16()
    return build_forward(model, build_tokens(4096))


def build_mlp() -> Workload:
    """Linear and ReLU, 2,000 times: modules that do next to nothing."""
    layers = (
        layer for _ in range(N_MLP_LAYERS) for layer in (nn.Linear(256, 256), nn.ReLU())
    )
    return build_forward(nn.Sequential(*layers), torch.zeros(32, 256))


def build_gpt2_training() -> Workload:
    """One step of GPT-2 with AdamW: forward, backward, update, zero_grad."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).train()
    model.loss_type = "ForCausalLM"  # transformers warns when it has to guess it
    tokens = build_tokens(1024)
    optimizer = torch.optim.AdamW(model.parameters())

    def run() -> None:
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    run()  # the first step also makes the optimizer's state
    return Workload(model=model, inputs=(tokens,), run=run, is_forward=False)


CELLS = (
    Cell(name="gpt2", build=build_gpt2),
    Cell(name="llama-70b", build=build_llama_70b),
    Cell(name="mixtral-8x7b", build=build_mixtral),
    Cell(name="mlp-2000", build=build_mlp),
    Cell(name="gpt2-training", build=build_gpt2_training),
)

CONSTRUCTION = Cell(name="llama-70b-construction", build=build_llama_70b_construction)
"""Apart: budgets count a construction of their own."""
