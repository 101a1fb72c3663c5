"""What is compared: one way to a real model with ``materialize()``, and one without."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

import meta_magic as mm

PAGE_NBYTES = 4096

REPLAY = "replay, eager"
LAST = "replay of the last layer, its draws alone"
EMPTY = "empty, to_empty"
LOAD = "load, assign"
READ = "load, assign; read"

Options = dict[str, int]
Build = Callable[[Options], nn.Module]

LLAMA = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 20,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32_000,
}
LLAMA_70B = {
    "hidden_size": 8192,
    "intermediate_size": 28_672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def build_gpt2(options: Options) -> nn.Module:
    """GPT-2 with 124 million parameters, tied; float32."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(**options))


def build_llama(options: Options) -> nn.Module:
    """Llama with a billion parameters; float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**(LLAMA | options)))


def build_last_layer(options: Options) -> nn.Module:
    """Last decoder layer of Llama-3-70B, built with all before it; float32."""
    return build_llama(LLAMA_70B | options).model.layers[-1]


def build_hybrid(options: Options) -> nn.Module:
    """Llama in bfloat16, with rotary buffers that no checkpoint has."""
    return build_llama(options).bfloat16()


def build_bare(options: Options) -> nn.Module:
    """The same without the buffers: a checkpoint has all there is."""
    model = build_hybrid(options)
    del model.model.rotary_emb
    return model


BUILDS: dict[str, Build] = {
    "gpt2": build_gpt2,
    "llama-1b": build_llama,
    "llama-70b": build_last_layer,
    "llama-1b-bf16": build_hybrid,
    "llama-1b-bf16-bare": build_bare,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to a real model.

    Attributes:
        prepare: Makes what ``run`` takes; timed on its own.
        run: What is measured; returns the model, or the report on the one it took.
    """

    prepare: Callable[[], Any]
    run: Callable[[Any], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """A way with :func:`meta_magic.materialize` beside the way without it.

    Attributes:
        name: What is done.
        model: Which model, as in ``BUILDS``.
        ways: With it, and without it.
    """

    name: str
    model: str
    ways: tuple[Way, Way]


def record(build: Build, options: Options) -> nn.Module:
    """Build under a recording, with none before that draws."""
    torch.manual_seed(0)
    with mm.record():
        return build(options)


def build_on_meta(build: Build, options: Options) -> nn.Module:
    """Build on plain meta."""
    with torch.device("meta"):
        return build(options)


def draw_layer(layer: nn.Module) -> nn.Module:
    """Draw the weights of a layer as its model would, if no others came before."""
    layer.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.02)
    return layer


def assign_file(path: Path, model: nn.Module) -> nn.Module:
    """Load as one does without materialize; non-persistent buffers stay on meta."""
    model.load_state_dict(load_file(path), assign=True)
    return model


def load_and_read(load: Callable[[nn.Module], object], model: nn.Module) -> object:
    """Load, and read from each page: what is mapped from a file comes in only then."""
    result = load(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.view(-1)[:: PAGE_NBYTES // parameter.itemsize].sum()
    return result


def list_contests(path: Path, options: Options) -> list[Contest]:
    """Return all rows for models of a size, and a file of weights of that size."""
    contests = []
    for name in ("gpt2", "llama-1b"):
        recorded = partial(record, BUILDS[name], options)
        eager = Way(prepare=lambda: options, run=BUILDS[name])
        ours = Way(prepare=recorded, run=mm.materialize)
        contests.append(Contest(name=REPLAY, model=name, ways=(ours, eager)))
    last = BUILDS["llama-70b"]
    ours = Way(prepare=partial(record, last, options), run=mm.materialize)
    theirs = Way(prepare=partial(build_on_meta, last, options), run=draw_layer)
    contests.append(Contest(name=LAST, model="llama-70b", ways=(ours, theirs)))
    for name in ("gpt2", "llama-1b"):
        plain = partial(build_on_meta, BUILDS[name], options)
        ours = Way(prepare=plain, run=partial(mm.materialize, init="empty"))
        theirs = Way(prepare=plain, run=lambda model: model.to_empty(device="cpu"))
        contests.append(Contest(name=EMPTY, model=name, ways=(ours, theirs)))
    load, assign = partial(mm.materialize, init=path), partial(assign_file, path)
    for name in ("llama-1b-bf16-bare", "llama-1b-bf16"):
        ours = Way(prepare=partial(record, BUILDS[name], options), run=load)
        plain = partial(build_on_meta, BUILDS[name], options)
        theirs = Way(prepare=plain, run=assign)
        contests.append(Contest(name=LOAD, model=name, ways=(ours, theirs)))
        read = tuple(
            Way(prepare=way.prepare, run=partial(load_and_read, way.run))
            for way in (ours, theirs)
        )
        contests.append(Contest(name=READ, model=name, ways=read))
    return contests


def save_weights(path: Path, options: Options) -> Path:
    """Write the file that is loaded."""
    state = build_on_meta(BUILDS["llama-1b-bf16"], options).state_dict()
    save_file({k: torch.ones_like(t, device="cpu") for k, t in state.items()}, path)
    return path
