"""Models of pictures and volumes: transformers, segmentation, features."""

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn

from tests.conformance.libraries.cases import Case, list_cases, on

PICTURES = on((2, 3, 32, 32))
VIT = {"image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 16, "depth": 2}
VIT |= {"heads": 2, "mlp_dim": 16, "dim_head": 8}
CLIP = {"image_size": 16, "image_patch_size": 8, "frames": 4, "frame_patch_size": 2}


def build_vit(around: str, **settings: Any) -> nn.Module:
    """Build what trains a vision transformer without labels."""
    is_dino = around == "dino.Dino"
    vit = import_module("vit_pytorch").ViT(**VIT, pool="cls" if is_dino else "mean")
    name = "net" if is_dino else "encoder"
    file, _, kind = f"vit_pytorch.{around}".rpartition(".")
    made: nn.Module = getattr(import_module(file), kind)(**{name: vit}, **settings)
    return made


PLAIN = {name: VIT[name] for name in VIT if name != "dim_head"}
DEEP = {"cls_depth": 1, "dropout": 0.1, "layer_dropout": 0.1}
STAGES = {"num_classes": 5, "dim": 8, "depth": (1, 1), "dim_head": 8}
VIDEO = {name: VIT[name] for name in ("num_classes", "dim", "heads", "mlp_dim")}
CVT = {f"s{n}_{name}": 1 for n in (1, 2, 3) for name in ("heads", "depth")}
CVT |= {f"s{n}_emb_dim": 8 for n in (1, 2, 3)}
VISION_TRANSFORMERS: dict[str, Any] = {
    "ViT": VIT | {"pool": "mean", "dropout": 0.1, "emb_dropout": 0.1},
    "SimpleViT": VIT,
    "deepvit.DeepViT": PLAIN,
    "cait.CaiT": VIT | DEEP,
    "parallel_vit.ViT": VIT | {"num_parallel_branches": 2},
    "ats_vit.ViT": VIT | {"max_tokens_per_depth": (8, 4)},
    "vit_for_small_dataset.ViT": VIT,
    "learnable_memory_vit.ViT": VIT,
    "rvt.RvT": VIT,
    "pit.PiT": VIT | {"depth": (1, 1)},
    "jumbo_vit.JumboViT": VIT,
    "normalized_vit.nViT": VIT,
    "simple_vit_with_fft.SimpleViT": VIT | {"freq_patch_size": 8},
    "simple_vit_with_register_tokens.SimpleViT": VIT,
    "simple_vit_with_patch_dropout.SimpleViT": VIT,
    "simple_vit_with_qk_norm.SimpleViT": VIT,
    "simple_vit_with_value_residual.SimpleViT": VIT,
    "simple_vit_with_hyper_connections.SimpleViT": VIT | {"num_residual_streams": 2},
    "simple_uvit.SimpleUViT": VIT,
    "xcit.XCiT": VIT | {"cls_depth": 1, "local_patch_kernel_size": 3},
    "max_vit.MaxViT": STAGES | {"window_size": 4},
    "max_vit_with_registers.MaxViT": STAGES | {"window_size": 4},
    "cvt.CvT": CVT | {"num_classes": 5},
    "mobile_vit.MobileViT": (
        {"image_size": (64, 64), "dims": [8, 8, 8], "num_classes": 5}
        | {"channels": [8] * 10, "depths": (1, 1, 1)},
        on((2, 3, 64, 64)),
    ),
    "nest.NesT": {
        "image_size": 32,
        "patch_size": 4,
        "num_classes": 5,
        "dim": 8,
        "heads": 1,
    }
    | {"num_hierarchies": 2, "block_repeats": (1, 1)},
    "cct.CCT": {"img_size": 32, "embedding_dim": 8, "num_layers": 1, "num_heads": 2}
    | {"num_classes": 5, "n_conv_layers": 1},
    "simple_vit_1d.SimpleViT": (
        {name: VIT[name] for name in VIT if name != "image_size"}
        | {"seq_len": 32, "channels": 3},
        on((2, 3, 32)),
    ),
    "vit_3d.ViT": (VIDEO | CLIP | {"depth": 2}, on((1, 3, 4, 16, 16))),
    "vivit.ViViT": (
        VIDEO | CLIP | {"spatial_depth": 1, "temporal_depth": 1},
        on((1, 3, 4, 16, 16)),
    ),
    "na_vit.NaViT": (
        VIT | {"token_dropout_prob": 0.2},
        lambda module: module(
            [[torch.rand(3, 32, 16), torch.rand(3, 16, 16)], [torch.rand(3, 8, 8)]]
        ),
    ),
    "mae.MAE": partial(build_vit, "mae.MAE", decoder_dim=8, decoder_depth=1),
    "dino.Dino": partial(
        build_vit,
        "dino.Dino",
        image_size=32,
        hidden_layer="to_latent",
        projection_hidden_size=8,
        num_classes_K=8,
        projection_layers=2,
    ),
}


def list_vit_pytorch() -> Iterator[Case]:
    """Yield vision transformers of all kinds."""
    yield from list_cases("vit_pytorch", VISION_TRANSFORMERS, PICTURES)


def list_segmentation_models_pytorch() -> Iterator[Case]:
    """Yield its decoders, on the smallest of its encoders."""
    sizes = {"encoder_name": "resnet18", "encoder_weights": None, "classes": 2}
    names = ("Unet", "UnetPlusPlus", "MAnet", "Linknet", "FPN", "PSPNet")
    more = ("DeepLabV3", "DeepLabV3Plus", "UPerNet", "Segformer")
    models = {name: (sizes, on((2, 3, 64, 64))) for name in (*names, *more)}
    models["PAN"] = (sizes, on((2, 3, 128, 128)))
    attention = {"decoder_attention_type": "scse", "encoder_name": "mobilenet_v2"}
    models["Unet, attention"] = (sizes | attention, on((2, 3, 64, 64)))
    yield from list_cases("segmentation_models_pytorch", models)


def list_slot_attention() -> Iterator[Case]:
    """Yield attention between objects and pictures."""
    sizes = {"num_slots": 3, "dim": 16, "iters": 2}
    models = {
        "SlotAttention": (sizes, on((2, 8, 16))),
        "MultiHeadSlotAttention": (sizes | {"heads": 2}, on((2, 8, 16))),
    }
    yield from list_cases("slot_attention", models)


def list_kornia() -> Iterator[Case]:
    """Yield finders and describers of points."""
    patches, fresh = on((4, 1, 32, 32)), {"pretrained": False}
    models = {
        "feature.HardNet": (fresh, patches),
        "feature.HyNet": (fresh, patches),
        "feature.SOSNet": (fresh, patches),
        "feature.TFeat": (fresh, patches),
        "feature.KeyNet": (fresh, on((1, 1, 32, 32))),
        "feature.OriNet": (fresh, patches),
        "feature.DeFMO": (fresh, on((1, 6, 64, 64))),
    }
    yield from list_cases("kornia", models)


VOLUME, PLANE = on((1, 1, 32, 32, 32)), on((2, 1, 32, 32))
ENDS = {"in_channels": 1, "out_channels": 2}
FLAT = ENDS | {"spatial_dims": 2}
STEPS = {"channels": (4, 8, 16), "strides": (2, 2)}
CODER = {"channels": (4, 8), "strides": (2, 2)}
LEVELS = {"num_res_blocks": 1, "channels": (8, 8), "norm_num_groups": 4}
ENCODER = LEVELS | {"attention_levels": (False, True)}
UNETR = {"img_size": (32, 32, 32), "feature_size": 4, "hidden_size": 24}
UNETR |= {"mlp_dim": 16, "num_heads": 2}


def denoise(module: nn.Module) -> Any:
    """Call a model on noise and times."""
    return module(torch.rand(2, 1, 16, 16), torch.tensor([1, 5]))


VOLUMES: dict[str, Any] = {
    "UNet": FLAT | STEPS | {"num_res_units": 1},
    "UNet, volume": (ENDS | STEPS | {"spatial_dims": 3}, VOLUME),
    "BasicUNet": FLAT | {"features": (4, 4, 8, 8, 8, 4)},
    "BasicUNetPlusPlus": FLAT | {"features": (4, 4, 8, 8, 8, 4)},
    "AttentionUnet": FLAT | STEPS,
    "DynUNet": FLAT
    | {"kernel_size": [3, 3, 3], "strides": [1, 2, 2], "filters": [4, 8, 8]}
    | {"upsample_kernel_size": [2, 2]},
    "SegResNet": FLAT | {"init_filters": 8},
    "SegResNetVAE": FLAT | {"input_image_size": (32, 32), "init_filters": 8},
    "VNet": (ENDS | {"spatial_dims": 3}, VOLUME),
    "UNETR": (ENDS | UNETR, VOLUME),
    "SwinUNETR": (
        FLAT | {"feature_size": 12, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2)},
        on((1, 1, 64, 64)),
    ),
    "ViT": {"in_channels": 1, "img_size": (32, 32), "patch_size": (8, 8)}
    | {"hidden_size": 16, "mlp_dim": 16, "num_layers": 1, "num_heads": 2}
    | {"spatial_dims": 2, "classification": True},
    "DenseNet": FLAT | {"init_features": 8, "growth_rate": 4, "block_config": (2, 2)},
    "HighResNet": ENDS | {"spatial_dims": 2},
    "Regressor": {"in_shape": (1, 32, 32), "out_shape": (1,), "channels": (4, 8)}
    | {"strides": (2, 2)},
    "AutoEncoder": FLAT | CODER,
    "VarAutoEncoder": CODER
    | {"spatial_dims": 2, "in_shape": (1, 32, 32), "latent_size": 4}
    | {"out_channels": 1},
    "AutoencoderKL": (
        FLAT | ENCODER | {"latent_channels": 4, "out_channels": 1},
        on((2, 1, 16, 16)),
    ),
    "VQVAE": (
        FLAT
        | {"channels": (8, 8), "num_res_layers": 1, "num_res_channels": (8, 8)}
        | {"downsample_parameters": ((2, 4, 1, 1),) * 2}
        | {"upsample_parameters": ((2, 4, 1, 1, 0),) * 2}
        | {"num_embeddings": 8, "embedding_dim": 4, "out_channels": 1},
        on((2, 1, 16, 16)),
    ),
    "DiffusionModelUNet": (
        FLAT | ENCODER | {"num_head_channels": 8, "out_channels": 1},
        denoise,
    ),
    "PatchDiscriminator": {
        "spatial_dims": 2,
        "in_channels": 1,
        "channels": 4,
        "num_layers_d": 2,
    },
    "restormer.Restormer": ENDS
    | {"spatial_dims": 2, "dim": 4, "num_blocks": (1, 1), "heads": (1, 1)}
    | {"num_refinement_blocks": 1},
    "mednext.MedNeXt": FLAT
    | {"init_filters": 4, "blocks_down": (1, 1), "blocks_up": (1, 1)}
    | {"blocks_bottleneck": 1, "encoder_expansion_ratio": 2}
    | {"decoder_expansion_ratio": 2, "bottleneck_expansion_ratio": 2},
    "RegUNet": FLAT | {"num_channel_initial": 4, "depth": 2},
    "FullyConnectedNet": (ENDS | {"hidden_channels": (8,), "dropout": 0.1}, on((2, 1))),
}


def list_monai() -> Iterator[Case]:
    """Yield networks of medical volumes."""
    yield from list_cases("monai.networks.nets", VOLUMES, PLANE)
