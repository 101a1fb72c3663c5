"""Models that lightning and accelerate train."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.conformance.libraries.cases import Case


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


QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
}
TRAINERS: dict[str, dict[str, Any]] = {
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


def build_regressor() -> nn.Module:
    """Build what lightning's trainer trains."""
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

    return Regressor()


def fit(given: dict[str, Any], module: nn.Module) -> None:
    """Train with lightning's trainer."""
    import lightning

    trainer = lightning.Trainer(max_epochs=2, **(QUIET | given))
    trainer.fit(module, make_loader(shuffle=True), make_loader())


def fit_with_fabric(module: nn.Module) -> None:
    """Train with lightning's Fabric."""
    import lightning

    fabric = lightning.Fabric(accelerator="cpu")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    model, optimizer = fabric.setup(module, optimizer)
    for x, y in fabric.setup_dataloaders(make_loader(shuffle=True)):
        optimizer.zero_grad()
        fabric.backward(F.mse_loss(model(x), y))
        optimizer.step()


def list_lightning() -> Iterator[Case]:
    """Yield a module that lightning trains, with one setting each."""
    for name, given in TRAINERS.items():
        step = partial(fit, given)
        yield Case(name=name, build=build_regressor, call=call_mlp, step=step)
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
