"""The models of diffusers at tiny sizes, its schedulers and two of its pipelines."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import diffusers
import torch
from torch import nn

from tests.conformance.libraries.cases import Case
from tests.conformance.libraries.diffusion_sizes import MODELS

SCHEDULERS = (
    "DDIMScheduler",
    "DDPMScheduler",
    "PNDMScheduler",
    "LMSDiscreteScheduler",
    "EulerDiscreteScheduler",
    "EulerAncestralDiscreteScheduler",
    "HeunDiscreteScheduler",
    "KDPM2DiscreteScheduler",
    "KDPM2AncestralDiscreteScheduler",
    "DPMSolverMultistepScheduler",
    "DPMSolverSinglestepScheduler",
    "DEISMultistepScheduler",
    "UniPCMultistepScheduler",
    "SASolverScheduler",
    "EDMEulerScheduler",
    "LCMScheduler",
    "TCDScheduler",
    "FlowMatchEulerDiscreteScheduler",
    "FlowMatchHeunDiscreteScheduler",
)


def build(class_name: str, settings: dict[str, Any]) -> nn.Module:
    """Build a model."""
    return getattr(diffusers, class_name)(**settings)


def make(wanted: Any) -> Any:
    """Return an input: of a shape random numbers, of a list these numbers."""
    if isinstance(wanted, tuple):
        return torch.randn(wanted)
    if isinstance(wanted, list):
        return torch.tensor(wanted)
    if isinstance(wanted, dict):
        return {name: make(value) for name, value in wanted.items()}
    return wanted


def call(inputs: dict[str, Any], module: nn.Module) -> Any:
    """Call a model on new inputs."""
    return module(**{name: make(wanted) for name, wanted in inputs.items()})


def build_unet() -> nn.Module:
    """Build a tiny UNet for images of 8 by 8."""
    return build("UNet2DModel", MODELS["UNet2DModel"][0])


def denoise(scheduler_name: str, module: nn.Module) -> torch.Tensor:
    """Draw an image in three steps, as the documentation does."""
    scheduler = getattr(diffusers, scheduler_name)()
    scheduler.set_timesteps(4)
    sample = torch.randn(1, 3, 8, 8) * getattr(scheduler, "init_noise_sigma", 1.0)
    for t in scheduler.timesteps:
        scaled = sample
        if hasattr(scheduler, "scale_model_input"):
            scaled = scheduler.scale_model_input(sample, t)
        with torch.no_grad():
            noise = module(scaled, t).sample
        sample = scheduler.step(noise, t, sample).prev_sample
    return sample


def train_with(scheduler_name: str, module: nn.Module) -> None:
    """Train to tell the noise, as the documentation does."""
    scheduler = getattr(diffusers, scheduler_name)()
    optimizer = torch.optim.AdamW(module.parameters())
    clean = torch.rand(2, 3, 8, 8)
    noise = torch.randn(clean.shape)
    steps = torch.randint(0, scheduler.config.num_train_timesteps, (2,)).long()
    if not hasattr(scheduler, "scale_noise"):
        clean = scheduler.add_noise(clean, noise, steps)
    loss = nn.functional.mse_loss(module(clean, steps, return_dict=False)[0], noise)
    loss.backward()
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer.step()


def draw(pipeline_name: str, module: nn.Module) -> Any:
    """Draw an image with a whole pipeline."""
    names = {"DDPMPipeline": "DDPMScheduler", "DDIMPipeline": "DDIMScheduler"}
    scheduler = getattr(diffusers, names[pipeline_name])()
    pipeline = getattr(diffusers, pipeline_name)(unet=module, scheduler=scheduler)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline(num_inference_steps=2, output_type="np").images


def list_diffusers() -> Iterator[Case]:
    """Yield its models, a UNet with each scheduler, and pipelines."""
    for name, (settings, inputs) in MODELS.items():
        class_name = name.partition(",")[0]
        if hasattr(diffusers, class_name):
            yield Case(
                name=name,
                build=partial(build, class_name, settings),
                call=partial(call, inputs),
            )
    step: Callable[[nn.Module], None]
    for name in SCHEDULERS:
        step = partial(train_with, name)
        if "EDM" in name or "Discrete" in name or name == "SASolverScheduler":
            step = partial(train_with, "DDPMScheduler")
        yield Case(name=name, build=build_unet, call=partial(denoise, name), step=step)
    for name in ("DDPMPipeline", "DDIMPipeline"):
        step = partial(train_with, "DDPMScheduler")
        yield Case(name=name, build=build_unet, call=partial(draw, name), step=step)
