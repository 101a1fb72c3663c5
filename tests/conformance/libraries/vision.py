"""The models of torchvision and timm."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import timm
import torch
import torchvision
from torch import nn
from torchvision.models import get_model, list_models

from tests.conformance.libraries.cases import Case, keep_small

BACKBONE = {"weights": None, "weights_backbone": None, "num_classes": 5}
SIDES = {"inception_v3": 299, "maxvit_t": 224, "alexnet": 96}
"""Height and width of images, where 64 is too small."""
FEW = {
    "rpn_post_nms_top_n_train": 40,
    "rpn_post_nms_top_n_test": 40,
    "box_batch_size_per_image": 16,
    "box_detections_per_img": 4,
}
"""How many boxes a detector of two stages looks at."""


def make_targets(keypoints: int = 0) -> list[dict[str, torch.Tensor]]:
    """Return what a detector is trained with: a box in each of two images."""
    target = {
        "boxes": torch.tensor([[5.0, 5.0, 40.0, 40.0]]),
        "labels": torch.tensor([1]),
        "masks": torch.ones(1, 64, 64, dtype=torch.uint8),
        "keypoints": torch.ones(1, keypoints or 17, 3) * 20,
    }
    return [target, dict(target)]


def detect(model: nn.Module) -> Any:
    """Call a detector, with targets where it is trained."""
    images = [torch.rand(3, 64, 64), torch.rand(3, 64, 64)]
    return model(images, make_targets() if model.training else None)


def call_torchvision(name: str, model: nn.Module) -> Any:
    """Call a model of torchvision on what its kind takes."""
    module = type(model).__module__
    if ".detection." in module:
        return detect(model)
    if ".optical_flow." in module:
        return model(torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128))
    if ".video." in module:
        side = 224 if name.startswith(("mvit", "s3d")) else 64
        return model(torch.rand(2, 3, 16 if side == 224 else 8, side, side))
    name = name.removeprefix("quantized_")
    side = 224 if name.startswith("vit") else SIDES.get(name, 64)
    return model(torch.rand(2, 3, side, side))


def build_torchvision(name: str) -> nn.Module:
    """Build a model of torchvision without weights."""
    if "rcnn" in name or name in list_models(torchvision.models.detection):
        return get_model(name, **BACKBONE, **small_images(name))
    if name in list_models(torchvision.models.segmentation):
        return get_model(name, **BACKBONE)
    return get_model(name, weights=None)


def small_images(name: str) -> dict[str, Any]:
    """Return what keeps a detector from scaling its images up, and its boxes few."""
    if name.startswith("ssd"):
        return {}
    sizes = {"min_size": 64, "max_size": 96}
    return sizes | (FEW if "rcnn" in name else {})


def list_torchvision() -> Iterator[Case]:
    """Yield the smallest models of each of its files."""
    builds = {name: partial(build_torchvision, name) for name in list_models()}

    def find_file(name: str) -> str:
        return torchvision.models.get_model_builder(name).__module__

    for name in keep_small(builds, find_file, 30e6, 4):
        yield Case(name=name, build=builds[name], call=partial(call_torchvision, name))


def call_timm(model: nn.Module) -> Any:
    """Call a model of timm on two images of the size that it is configured for."""
    channels, *sides = model.pretrained_cfg["input_size"]
    if not model.pretrained_cfg.get("fixed_input_size", False):
        least = model.pretrained_cfg.get("min_input_size") or (channels, 0, 0)
        sides = [max(96, side) for side in least[1:]]
    return model(torch.rand(2, channels, *sides))


def choose(names: list[str]) -> list[str]:
    """Return four names of which the smallest models are looked for."""
    words = ("test", "atto", "femto", "pico", "nano", "xxs", "xs", "tiny", "small")
    return sorted(names, key=lambda n: (not any(w in n for w in words), len(n)))[:4]


def list_timm(n_kept: int = 1) -> Iterator[Case]:
    """Yield the smallest models of each of timm's files.

    Args:
        n_kept: How many of each.
    """
    for file in timm.list_modules():
        names = choose(timm.list_models(module=file))
        builds = {name: partial(timm.create_model, name) for name in names}
        for name in keep_small(builds, lambda _: "all", 30e6, n_kept):
            yield Case(name=name, build=builds[name], call=call_timm)
