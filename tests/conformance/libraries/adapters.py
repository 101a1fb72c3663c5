"""Ways of fine-tuning of peft, on tiny language models."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.conformance.libraries.cases import Case, find_loss


def build_gpt2() -> nn.Module:
    """Build a tiny GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 32}
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, **sizes))


def build_llama() -> nn.Module:
    """Build a tiny Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16}
    config = LlamaConfig(
        vocab_size=50, intermediate_size=32, max_position_embeddings=32, **sizes
    )
    return LlamaForCausalLM(config)


def call_language_model(module: nn.Module) -> Any:
    """Return the loss of two sentences."""
    tokens = torch.randint(0, 50, (2, 8))
    return module(input_ids=tokens, labels=tokens).loss


ON_LAYERS = {
    "LoraConfig": {"r": 2},
    "LoraConfig, dora": {"r": 2, "use_dora": True},
    "LoraConfig, rslora": {"r": 2, "use_rslora": True, "lora_dropout": 0.1},
    "LoraConfig, pissa": {"r": 2, "init_lora_weights": "pissa"},
    "LoraConfig, olora": {"r": 2, "init_lora_weights": "olora"},
    "LoraConfig, gaussian": {"r": 2, "init_lora_weights": "gaussian"},
    "LoraConfig, orthogonal": {"r": 2, "init_lora_weights": "orthogonal"},
    "LoraConfig, bias": {"r": 2, "bias": "all"},
    "LoraConfig, modules_to_save": {"r": 2, "modules_to_save": ["lm_head"]},
    "AdaLoraConfig": {"init_r": 4, "target_r": 2, "total_step": 10},
    "LoHaConfig": {"r": 2},
    "LoKrConfig": {"r": 2},
    "OFTConfig": {"r": 0, "oft_block_size": 4},
    "BOFTConfig": {"boft_block_size": 4},
    "IA3Config": {"feedforward_modules": []},
    "VeraConfig": {"r": 2},
    "FourierFTConfig": {"n_frequency": 10},
    "HRAConfig": {"r": 2},
    "VBLoRAConfig": {"r": 2, "num_vectors": 8, "vector_length": 4},
    "BoneConfig": {"r": 2},
    "MissConfig": {"r": 2},
    "RandLoraConfig": {"r": 2},
    "TrainableTokensConfig": {"token_indices": [1, 2]},
    "ShiraConfig": {"r": 2},
    "C3AConfig": {"block_size": 4},
    "RoadConfig": {"group_size": 8},
    "WaveFTConfig": {"n_frequency": 10},
    "DeloraConfig": {"r": 2},
    "GraloraConfig": {"r": 4, "gralora_k": 2},
    "OSFConfig": {},
}
ON_MODELS = {
    "PromptTuningConfig": {"num_virtual_tokens": 3},
    "PrefixTuningConfig": {"num_virtual_tokens": 3},
    "PrefixTuningConfig, projection": {
        "num_virtual_tokens": 3,
        "prefix_projection": True,
        "encoder_hidden_size": 8,
    },
    "PromptEncoderConfig": {"num_virtual_tokens": 3, "encoder_hidden_size": 8},
    "LNTuningConfig": {},
    "AdaptionPromptConfig": {"adapter_len": 3, "adapter_layers": 1},
    "CPTConfig": {"cpt_token_ids": [1, 2], "cpt_tokens_type_mask": [1, 2]},
}


def build_adapted(build: Callable[[], nn.Module], given: Any) -> nn.Module:
    """Build a language model, and adapt it."""
    import peft

    return peft.get_peft_model(build(), given())


def list_peft() -> Iterator[Case]:
    """Yield each way of fine-tuning, on a tiny GPT-2 or Llama."""
    import peft

    where = {"target_modules": ["q_proj", "v_proj"]}
    for name, settings in (ON_LAYERS | ON_MODELS).items():
        config = getattr(peft, name.partition(",")[0], None)
        if config is None:
            continue
        kept = settings | ({} if name in ON_MODELS else where)
        if name == "TrainableTokensConfig":
            kept = settings
        given = partial(config, task_type="CAUSAL_LM", **kept)
        build = partial(build_adapted, build_llama, given)
        yield Case(name=name, build=build, call=call_language_model)
    lora = partial(peft.LoraConfig, task_type="CAUSAL_LM", r=2)
    build = partial(build_adapted, build_gpt2, partial(lora, fan_in_fan_out=True))
    yield Case(name="LoraConfig on GPT-2", build=build, call=call_language_model)

    def build_merged() -> nn.Module:
        return build_adapted(build_llama, lora).merge_and_unload().requires_grad_()

    def train_twice(module: nn.Module) -> None:
        for name in ("default", "other"):
            module.set_adapter(name)
            find_loss(call_language_model(module)).backward()

    def build_two() -> nn.Module:
        module = build_adapted(build_llama, lora)
        module.add_adapter("other", lora())
        return module

    yield Case(name="merged", build=build_merged, call=call_language_model)
    yield Case(
        name="two adapters", build=build_two, call=call_language_model, step=train_twice
    )
