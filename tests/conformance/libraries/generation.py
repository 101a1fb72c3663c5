"""Models that generate: diffusion, flows, quantized codes."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
from torch import nn

from tests.conformance.libraries.cases import Case, list_cases, on

PICTURES = on((2, 3, 16, 16))
UNET = {"dim": 8, "dim_mults": (1, 2)}


def build_diffusion(kind: str, unet: str = "Unet", **settings: Any) -> nn.Module:
    """Build a diffusion process around a U-Net."""
    library = import_module("denoising_diffusion_pytorch")
    sizes = UNET | settings.pop("of_unet", {})
    if not unet.endswith("1D"):
        sizes |= {"flash_attn": False}
    return getattr(library, kind)(getattr(library, unet)(**sizes), **settings)


STEPS = {"image_size": 16, "timesteps": 10}
TIMES = {"image_size": 16, "num_sample_steps": 4}
CONTINUOUS = {"learned_sinusoidal_cond": True}
KARRAS = {"dim": 8, "dim_max": 16, "num_downsamples": 1, "num_blocks_per_stage": 1}
KARRAS |= {"attn_dim_head": 8, "fourier_dim": 8}
FILM = {"image_size": 8, "frames": 4, "attn_res": ()}


def on_noise(*shape: int) -> Any:
    """Return what calls a model on noise and times."""
    return lambda module: module(torch.rand(shape), torch.rand(shape[0]))


DIFFUSIONS = {
    "GaussianDiffusion": lambda: build_diffusion("GaussianDiffusion", **STEPS),
    "GaussianDiffusion, v": lambda: build_diffusion(
        "GaussianDiffusion", **STEPS, objective="pred_v", min_snr_loss_weight=True
    ),
    "LearnedGaussianDiffusion": lambda: build_diffusion(
        "LearnedGaussianDiffusion", **STEPS, of_unet={"learned_variance": True}
    ),
    "WeightedObjectiveGaussianDiffusion": lambda: build_diffusion(
        "WeightedObjectiveGaussianDiffusion", **STEPS, of_unet={"out_dim": 6 + 2}
    ),
    "ContinuousTimeGaussianDiffusion": lambda: build_diffusion(
        "ContinuousTimeGaussianDiffusion", **TIMES, of_unet=CONTINUOUS
    ),
    "VParamContinuousTimeGaussianDiffusion": lambda: build_diffusion(
        "VParamContinuousTimeGaussianDiffusion", **TIMES, of_unet=CONTINUOUS
    ),
    "ElucidatedDiffusion": lambda: build_diffusion(
        "ElucidatedDiffusion", **TIMES, of_unet=CONTINUOUS
    ),
    "GaussianDiffusion1D": (
        lambda: build_diffusion(
            "GaussianDiffusion1D", "Unet1D", seq_length=16, timesteps=10
        ),
        on((2, 3, 16)),
    ),
    "KarrasUnet": (KARRAS | {"image_size": 16}, on_noise(2, 4, 16, 16)),
    "KarrasUnet1D": (KARRAS | {"seq_len": 16}, on_noise(2, 4, 16)),
    "KarrasUnet3D": (KARRAS | FILM, on_noise(1, 4, 4, 8, 8)),
}


def list_denoising_diffusion_pytorch() -> Iterator[Case]:
    """Yield diffusion processes, and U-Nets of their own."""
    yield from list_cases("denoising_diffusion_pytorch", DIFFUSIONS, PICTURES)


CODES = on((2, 8, 16))


def list_vector_quantize_pytorch() -> Iterator[Case]:
    """Yield ways of quantizing, within an encoder and a decoder that are trained."""
    book = {"dim": 16, "codebook_size": 8}
    settings: dict[str, dict[str, Any]] = {
        "VectorQuantize": book,
        "VectorQuantize, kmeans": book | {"kmeans_init": True, "kmeans_iters": 2},
        "VectorQuantize, cosine": book | {"use_cosine_sim": True},
        "VectorQuantize, learned": book
        | {"learnable_codebook": True, "ema_update": False},
        "VectorQuantize, heads": book
        | {"heads": 2, "separate_codebook_per_head": True, "codebook_dim": 8},
        "VectorQuantize, stochastic": book | {"stochastic_sample_codes": True},
        "VectorQuantize, expiring": book | {"threshold_ema_dead_code": 2},
        "VectorQuantize, rotation": book | {"rotation_trick": True},
        "VectorQuantize, orthogonal": book | {"orthogonal_reg_weight": 1.0},
        "ResidualVQ": book | {"num_quantizers": 2},
        "ResidualVQ, dropout": book | {"num_quantizers": 2, "quantize_dropout": True},
        "GroupedResidualVQ": book | {"num_quantizers": 2, "groups": 2},
        "FSQ": {"dim": 16, "levels": [4, 3]},
        "FSQ, symmetric": {"dim": 16, "levels": [4, 3], "preserve_symmetry": True},
        "ResidualFSQ": {"dim": 16, "levels": [4, 3], "num_quantizers": 2},
        "LFQ": book | {"entropy_loss_weight": 0.1, "diversity_gamma": 1.0},
        "ResidualLFQ": book | {"num_quantizers": 2},
        "SimVQ": book,
        "ResidualSimVQ": book | {"num_quantizers": 2},
    }

    def build(name: str) -> nn.Module:
        library = import_module("vector_quantize_pytorch")
        quantizer = getattr(library, name.partition(",")[0])(**settings[name])
        return nn.ModuleDict({"before": nn.Linear(16, 16), "codes": quantizer})

    def call(module: Any) -> Any:
        return module.codes(module.before(torch.rand(2, 8, 16)))

    for name in settings:
        yield Case(name=name, build=lambda name=name: build(name), call=call)


def list_rectified_flow_pytorch() -> Iterator[Case]:
    """Yield flows along straight lines."""

    def build(kind: str, **settings: Any) -> nn.Module:
        library = import_module("rectified_flow_pytorch")
        return getattr(library, kind)(library.Unet(**UNET), **settings)

    models = {
        "RectifiedFlow": lambda: build("RectifiedFlow"),
        "RectifiedFlow, consistency": lambda: build(
            "RectifiedFlow", use_consistency=True
        ),
        "NanoFlow": lambda: build("NanoFlow", times_cond_kwarg="times"),
        "EquilibriumMatching": lambda: build("EquilibriumMatching"),
    }
    yield from list_cases("rectified_flow_pytorch", models, PICTURES)


def list_siren_pytorch() -> Iterator[Case]:
    """Yield networks of sines."""
    sizes = {"dim_in": 2, "dim_hidden": 16, "dim_out": 3, "num_layers": 2}

    def build(**settings: Any) -> nn.Module:
        library = import_module("siren_pytorch")
        net = library.SirenNet(**sizes)
        return library.SirenWrapper(net, image_width=8, image_height=8, **settings)

    models = {
        "SirenNet": (sizes, on((4, 2))),
        "SirenWrapper": (build, on((1, 3, 8, 8))),
        "SirenWrapper, modulated": (
            lambda: build(latent_dim=4),
            lambda module: module(torch.rand(1, 3, 8, 8), latent=torch.rand(4)),
        ),
    }
    yield from list_cases("siren_pytorch", models)


def on_points(module: Any) -> Any:
    """Return the likelihood of points, and points that are drawn."""
    likelihood = module.log_prob(torch.randn(4, 2))
    return likelihood, module.sample(3)


def list_nflows() -> Iterator[Case]:
    """Yield flows of autoregressive layers and of splines."""

    def build(kind: str, **settings: Any) -> nn.Module:
        from nflows import distributions, flows, transforms

        layers = [
            transforms.ReversePermutation(2),
            getattr(transforms, kind)(**settings),
        ]
        base = distributions.StandardNormal([2])
        return flows.Flow(transforms.CompositeTransform(layers), base)

    sizes = {"features": 2, "hidden_features": 8}
    spline = sizes | {"num_bins": 4, "tails": "linear", "tail_bound": 3.0}
    affine = "MaskedAffineAutoregressiveTransform"
    rational = "MaskedPiecewiseRationalQuadraticAutoregressiveTransform"
    quadratic = "MaskedPiecewiseQuadraticAutoregressiveTransform"
    models = {
        "affine": lambda: build(affine, **sizes),
        "rational": lambda: build(rational, **spline),
        "quadratic": lambda: build(quadratic, **spline),
        "batch norm": (lambda: build("BatchNorm", features=2), likelihood_of_points),
        "lower and upper": lambda: build("LULinear", features=2),
        "orthogonal": lambda: build(
            "HouseholderSequence", features=2, num_transforms=2
        ),
        "singular values": lambda: build("SVDLinear", features=2, num_householder=2),
    }
    yield from list_cases("nflows", models, on_points)


def likelihood_of_points(module: Any) -> Any:
    """Return the likelihood of points."""
    return module.log_prob(torch.randn(4, 2))


def forward_kld(module: Any) -> Any:
    """Return how far a flow is from points."""
    return module.forward_kld(torch.randn(8, 2))


def build_flow(*kinds: tuple[Any, ...]) -> nn.Module:
    """Build a flow of layers: for each its kind and what it is given."""
    import normflows as nf

    layers = [getattr(nf.flows, kind)(*given) for kind, *given in kinds]
    return nf.NormalizingFlow(nf.distributions.DiagGaussian(2), layers)


def real_nvp() -> nn.Module:
    """Build a flow of couplings."""
    import normflows as nf

    coupling = ("AffineCouplingBlock", nf.nets.MLP([1, 8, 2], init_zeros=True))
    return build_flow(coupling, ("Permute", 2, "swap"), ("ActNorm", 2))


def residual() -> nn.Module:
    """Build a flow whose layers are Lipschitz."""
    import normflows as nf

    net = nf.nets.LipschitzMLP([2, 8, 2], init_zeros=True, lipschitz_const=0.9)
    return build_flow(("Residual", net))


SPLINE = ("AutoregressiveRationalQuadraticSpline", 2, 1, 8)
COUPLED = ("CoupledRationalQuadraticSpline", 2, 1, 8)
FLOWS = {
    "planar and radial": (
        lambda: build_flow(("Planar", (2,)), ("Radial", (2,))),
        lambda module: module.sample(8),
    ),
    "RealNVP": real_nvp,
    "autoregressive splines": lambda: build_flow(SPLINE),
    "coupled splines": lambda: build_flow(COUPLED, ("LULinearPermute", 2)),
    "residual": residual,
    "autoregressive": lambda: build_flow(("MaskedAffineAutoregressive", 2, 8)),
}


def list_normflows() -> Iterator[Case]:
    """Yield flows with couplings, splines and residual networks."""
    yield from list_cases("normflows", FLOWS, forward_kld)
