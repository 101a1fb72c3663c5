"""Models that lightning, accelerate and peft train."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.conformance.libraries.cases import Case, find_loss

__all__ = ["list_accelerate", "list_lightning", "list_peft"]


def make_loader(**settings: Any) -> DataLoader:
    """Return eight samples of two features in two batches."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(8, 2, generator=generator)
    return DataLoader(
        TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, **settings
    )


def build_mlp() -> nn.Module:
    """Build a small model with dropout and a norm."""
    return nn.Sequential(
        nn.Linear(2, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 1)
    )


def call_mlp(module: nn.Module) -> torch.Tensor:
    """Call it on four samples."""
    return module(torch.randn(4, 2))


def list_lightning() -> Iterator[Case]:
    """Yield a module that lightning's trainer trains, with one setting each."""
    import lightning

    class Regressor(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = build_mlp()

        def forward(self, x):
            return self.model(x)

        def training_step(self, batch, _):
            x, y = batch
            loss = F.mse_loss(self(x), y)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, _):
            x, y = batch
            self.log("val_loss", F.mse_loss(self(x), y), prog_bar=True)

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
    }
    settings = {
        "fit": {},
        "clip by norm": {"gradient_clip_val": 0.5},
        "clip by value": {"gradient_clip_val": 0.5, "gradient_clip_algorithm": "value"},
        "accumulate": {"accumulate_grad_batches": 2},
        "bf16-mixed": {"precision": "bf16-mixed"},
        "bf16-true": {"precision": "bf16-true"},
        "double": {"precision": "64-true"},
        "detect anomaly": {"detect_anomaly": True},
        "fast_dev_run": {"fast_dev_run": True},
        "summary": {"enable_model_summary": True},
        "deterministic": {"deterministic": True},
        "auto": {"accelerator": "auto", "devices": "auto"},
    }

    def fit(given: dict[str, Any], module: nn.Module) -> None:
        trainer = lightning.Trainer(max_epochs=2, **(quiet | given))
        trainer.fit(module, make_loader(shuffle=True), make_loader())

    def fit_with_fabric(module: nn.Module) -> None:
        fabric = lightning.Fabric(accelerator="cpu")
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        model, optimizer = fabric.setup(module, optimizer)
        for x, y in fabric.setup_dataloaders(make_loader(shuffle=True)):
            optimizer.zero_grad()
            fabric.backward(F.mse_loss(model(x), y))
            optimizer.step()

    for name, given in settings.items():
        yield Case(name=name, build=Regressor, call=call_mlp, step=partial(fit, given))
    yield Case(name="Fabric", build=build_mlp, call=call_mlp, step=fit_with_fabric)


def train_with(given: dict[str, Any], module: nn.Module) -> None:
    """Train as accelerate's quick tour does."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, **given)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    model, optimizer, loader, schedule = accelerator.prepare(
        module, optimizer, make_loader(shuffle=True), schedule
    )
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = F.mse_loss(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            accelerator.gather_for_metrics((loss.detach().reshape(1), y))
    accelerator.unwrap_model(model)
    accelerator.free_memory()


def list_accelerate() -> Iterator[Case]:
    """Yield a model that accelerate trains, with one setting each."""
    settings = {
        "quick tour": {},
        "accumulation": {"gradient_accumulation_steps": 2},
        "bf16": {"mixed_precision": "bf16"},
        "step_scheduler_with_optimizer": {"step_scheduler_with_optimizer": False},
        "split_batches": {"split_batches": True},
    }
    for name, given in settings.items():
        yield Case(
            name=name, build=build_mlp, call=call_mlp, step=partial(train_with, given)
        )

    def call_dispatched(module: nn.Module) -> torch.Tensor:
        from accelerate import dispatch_model

        return call_mlp(dispatch_model(module, {"": "cpu"}, main_device="cpu"))

    def do_nothing(_: nn.Module) -> None:
        pass

    yield Case(name="dispatch", build=build_mlp, call=call_dispatched, step=do_nothing)


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
