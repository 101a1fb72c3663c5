"""Models of sequences and tables: transformers of all kinds, state spaces, RNNs."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.conformance.libraries.cases import Case, list_cases, on

SMALL = {"dim": 16, "depth": 1, "heads": 2}
SEQUENCE = on((2, 8, 16))


def on_tokens(module: nn.Module) -> Any:
    """Call a model on two sentences."""
    return module(torch.randint(0, 20, (2, 16)))


def build_x_transformer(
    wrapper: str = "TransformerWrapper", layers: str = "Decoder", **settings: Any
) -> nn.Module:
    """Build a transformer of one layer, with a setting of its attention."""
    import x_transformers

    attention = getattr(x_transformers, layers)(**SMALL, **settings)
    sizes: dict[str, Any] = {"max_seq_len": 16, "attn_layers": attention}
    if wrapper.startswith("Continuous"):
        sizes |= {"dim_in": 16, "dim_out": 16}
    else:
        sizes |= {"num_tokens": 20}
    return getattr(x_transformers, wrapper)(**sizes)


def build_autoregressive(wrapper: str) -> nn.Module:
    """Build a transformer that is trained by what follows."""
    import x_transformers

    return getattr(x_transformers, wrapper)(build_x_transformer())


ATTENTION: dict[str, dict[str, Any]] = {
    "rotary": {"rotary_pos_emb": True},
    "rotary, xpos": {"rotary_xpos": True},
    "alibi": {"alibi_pos_bias": True},
    "relative": {"rel_pos_bias": True},
    "dynamic": {"dynamic_pos_bias": True},
    "one head of keys": {"attn_one_kv_head": True},
    "few heads of keys": {"attn_kv_heads": 1},
    "topk": {"attn_sparse_topk": 2},
    "talking heads": {"attn_pre_talking_heads": True},
    "memory": {"attn_num_mem_kv": 2},
    "qk norm": {"attn_qk_norm": True},
    "flash": {"attn_flash": True},
    "macaron": {"macaron": True},
    "sandwich": {"sandwich_coef": 1},
    "gated residuals": {"gate_residual": True},
    "gated values": {"attn_gate_values": True},
    "rmsnorm and glu": {"use_rmsnorm": True, "ff_glu": True, "ff_swish": True},
    "shifted tokens": {"shift_tokens": 1},
    "hyper connections": {"num_residual_streams": 2},
    "value residual": {"add_value_residual": True},
    "hybrid": {"residual_attn": True},
}
AUTOREGRESSIVE = ("AutoregressiveWrapper", "XLAutoregressiveWrapper")


def list_x_transformers() -> Iterator[Case]:
    """Yield transformers with each of the settings of its attention."""
    for name, settings in ATTENTION.items():
        build = partial(build_x_transformer, **settings)
        yield Case(name=name, build=build, call=on_tokens)
    build = partial(build_x_transformer, layers="Encoder")
    yield Case(name="Encoder", build=build, call=on_tokens)
    build = partial(build_x_transformer, "ContinuousTransformerWrapper")
    yield Case(name="continuous", build=build, call=on((2, 16, 16)))
    for name in AUTOREGRESSIVE:
        build = partial(build_autoregressive, name)
        yield Case(name=name, build=build, call=on_tokens)


def build_mamba(file: str, kind: str, config: str, **settings: Any) -> nn.Module:
    """Build a model of mambapy."""
    from importlib import import_module

    module = import_module(f"mambapy.{file}")
    return getattr(module, kind)(getattr(module, config)(**settings))


def list_mambapy() -> Iterator[Case]:
    """Yield its state space models."""
    sizes = {"d_model": 16, "n_layers": 2}
    jamba = sizes | {"mlp_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    jamba |= {"num_experts": 2, "num_experts_per_tok": 1, "vocab_size": 20}
    build = partial(build_mamba, "mamba", "Mamba", "MambaConfig", **sizes)
    models: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Any]]] = {
        "Mamba": build,
        "Mamba, one step after the other": partial(build, pscan=False),
        "Mamba, bias and norms": partial(build, bias=True, inner_layernorms=True),
        "VMamba": partial(build_mamba, "vim", "VMamba", "MambaConfig", **sizes),
        "Jamba": (
            partial(build_mamba, "jamba", "JambaLM", "JambaLMConfig", **jamba),
            on_tokens,
        ),
    }
    yield from list_cases("mambapy", models, SEQUENCE)


def list_titans_pytorch() -> Iterator[Case]:
    """Yield a memory that is trained as it reads."""
    context = {"num_tokens": 20, "dim": 16, "depth": 2, "segment_len": 8, "heads": 2}
    models = {"MemoryAsContextTransformer": (context | {"dim_head": 8}, on_tokens)}
    yield from list_cases("titans_pytorch", models)


def list_reformer_pytorch() -> Iterator[Case]:
    """Yield reversible transformers that hash."""
    sizes = SMALL | {"num_tokens": 20, "max_seq_len": 16, "bucket_size": 4}
    models = {
        "ReformerLM": (sizes, on_tokens),
        "ReformerLM, axial": (sizes | {"axial_position_emb": True}, on_tokens),
    }
    yield from list_cases("reformer_pytorch", models)


def list_performer_pytorch() -> Iterator[Case]:
    """Yield transformers with random features."""
    sizes = SMALL | {"dim_head": 8}
    words = sizes | {"num_tokens": 20, "max_seq_len": 16}
    models = {
        "Performer": (sizes, SEQUENCE),
        "PerformerLM": words,
        "PerformerLM, generalized": words | {"generalized_attention": True},
    }
    yield from list_cases("performer_pytorch", models, on_tokens)


def list_linformer() -> Iterator[Case]:
    """Yield transformers of linear cost."""
    sizes = SMALL | {"seq_len": 16, "k": 4}
    models = {
        "Linformer": (sizes, on((2, 16, 16))),
        "LinformerLM": (sizes | {"num_tokens": 20, "reversible": True}, on_tokens),
    }
    yield from list_cases("linformer", models)


def list_local_attention() -> Iterator[Case]:
    """Yield a transformer of windows."""
    sizes = SMALL | {"num_tokens": 20, "max_seq_len": 16, "local_attn_window_size": 4}
    more = {"use_xpos": True, "use_dynamic_pos_bias": True, "causal": True}
    models = {
        "LocalTransformer": (sizes | {"causal": True}, on_tokens),
        "LocalTransformer, biases": (sizes | more, on_tokens),
    }
    yield from list_cases("local_attention", models)


def list_perceiver_pytorch() -> Iterator[Case]:
    """Yield perceivers of pictures and of sequences."""
    sizes = {"depth": 2, "num_latents": 4, "latent_dim": 16, "num_classes": 5}
    picture = sizes | {"num_freq_bands": 2, "max_freq": 4.0, "input_channels": 3}
    both = {"dim": 16, "depth": 2, "queries_dim": 16, "num_latents": 4}

    def ask(module: nn.Module) -> Any:
        return module(torch.rand(2, 8, 16), queries=torch.rand(8, 16))

    models = {
        "Perceiver": (picture, on((2, 8, 8, 3))),
        "Perceiver, tied": (picture | {"weight_tie_layers": True}, on((2, 8, 8, 3))),
        "PerceiverIO": (both | {"latent_dim": 16}, ask),
    }
    yield from list_cases("perceiver_pytorch", models)


def list_gateloop_transformer() -> Iterator[Case]:
    """Yield linear recurrences with gates."""
    sizes = {"num_tokens": 20, "dim": 16, "depth": 1, "use_gate_looped_attn": True}
    models = {
        "Transformer": (sizes | {"heads": 2, "dim_head": 8}, on_tokens),
        "SimpleGateLoopLayer": ({"dim": 16}, SEQUENCE),
    }
    yield from list_cases("gateloop_transformer", models)


def list_conformer() -> Iterator[Case]:
    """Yield convolutions beside attention, as for speech."""
    sizes = SMALL | {"dim_head": 8, "conv_kernel_size": 7}
    yield from list_cases("conformer", {"Conformer": (sizes, SEQUENCE)})


def list_pytorch_tcn() -> Iterator[Case]:
    """Yield temporal convolutions."""
    sizes = {"num_inputs": 16, "num_channels": [8, 8], "kernel_size": 3}
    weighted = sizes | {"use_norm": "weight_norm", "use_skip_connections": True}
    models = {
        "TCN": (sizes, on((2, 16, 8))),
        "TCN, weight norm": (weighted, on((2, 16, 8))),
        "TCN, causal not": (sizes | {"causal": False}, on((2, 16, 8))),
    }
    yield from list_cases("pytorch_tcn", models)


def build_wired(kind: str) -> nn.Module:
    """Build a liquid network whose neurons are wired as a policy."""
    import ncps.torch
    import ncps.wirings

    return getattr(ncps.torch, kind)(16, ncps.wirings.AutoNCP(8, 3))


def list_ncps() -> Iterator[Case]:
    """Yield liquid time constants and their closed form."""
    models = {
        "CfC": lambda: build_wired("CfC"),
        "LTC": lambda: build_wired("LTC"),
        "torch.CfC, dense": {"input_size": 16, "units": 8},
        "torch.LTC, dense": {"input_size": 16, "units": 8},
        "torch.CfC, mixed": {"input_size": 16, "units": 8, "mixed_memory": True},
    }
    yield from list_cases("ncps", models, SEQUENCE)


def on_rows(module: nn.Module) -> Any:
    """Call a model on rows of classes and numbers."""
    return module(torch.randint(0, 5, (4, 2)), torch.randn(4, 3))


def list_tab_transformer_pytorch() -> Iterator[Case]:
    """Yield transformers of tables."""
    sizes = SMALL | {"categories": (5, 6), "num_continuous": 3, "dim_out": 1}
    models = {
        "TabTransformer": (sizes | {"mlp_act": nn.ReLU()}, on_rows),
        "FTTransformer": (sizes, on_rows),
    }
    yield from list_cases("tab_transformer_pytorch", models)


def list_pytorch_tabnet() -> Iterator[Case]:
    """Yield attention over the columns of a table."""
    sizes = {"n_d": 4, "n_a": 4, "virtual_batch_size": 2}

    def build(kind: str, **more: Any) -> nn.Module:
        from pytorch_tabnet import tab_network

        matrix = {"group_attention_matrix": torch.eye(6)}
        return getattr(tab_network, kind)(6, **sizes, **more, **matrix)

    models = {
        "TabNet": lambda: build("TabNet", output_dim=2),
        "TabNet, entmax": lambda: build("TabNet", output_dim=2, mask_type="entmax"),
        "TabNetPretraining": lambda: build("TabNetPretraining"),
    }
    yield from list_cases("pytorch_tabnet", models, on((4, 6)))
