"""Physics, processes, spikes and splines."""

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn

from tests.conformance.libraries.cases import Case, list_cases, on, train


def list_neuralop() -> Iterator[Case]:
    """Yield neural operators."""
    fno = {"n_modes": (4, 4), "in_channels": 1, "out_channels": 1}
    fno |= {"hidden_channels": 8, "n_layers": 2}
    plane = on((2, 1, 16, 16))
    uno = {"in_channels": 1, "out_channels": 1, "hidden_channels": 8, "n_layers": 2}
    uno |= {"uno_out_channels": [8, 8], "uno_n_modes": [[4, 4], [4, 4]]}
    uno |= {"channel_mlp_skip": "linear"}
    models = {
        "models.FNO": fno,
        "models.FNO, one dimension": (fno | {"n_modes": (4,)}, on((2, 1, 16))),
        "models.FNO, three": (fno | {"n_modes": (4, 4, 4)}, on((1, 1, 8, 8, 8))),
        "models.FNO, factorized": fno | {"factorization": "tucker", "rank": 0.5},
        "models.FNO, separable": fno | {"separable": True},
        "models.FNO, complex": (fno | {"complex_data": True}, on_complex),
        "models.UNO": uno | {"uno_scalings": [[1, 1], [1, 1]]},
        "layers.channel_mlp.ChannelMLP": {"in_channels": 1, "n_layers": 2},
    }
    yield from list_cases("neuralop", models, plane)


def on_complex(module: nn.Module) -> Any:
    """Return the sizes of what a model makes of complex numbers."""
    return module(torch.randn(2, 1, 16, 16, dtype=torch.cfloat)).abs()


def list_torchdiffeq() -> Iterator[Case]:
    """Yield a differential equation with each solver."""

    class Field(nn.Module):
        """How fast points move."""

        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))

        def forward(self, _: Any, y: torch.Tensor) -> torch.Tensor:
            """Return the change at a time."""
            return self.net(y**3)

    def solve(method: str, adjoint: bool) -> Callable[[nn.Module], Any]:
        library = import_module("torchdiffeq")
        integrate = library.odeint_adjoint if adjoint else library.odeint
        times = [0.0, 0.2, 0.5]

        def call(module: nn.Module) -> Any:
            return integrate(
                module, torch.rand(4, 2), torch.tensor(times), method=method
            )

        return call

    for method in ("dopri5", "rk4", "euler", "bosh3", "implicit_adams", "fehlberg2"):
        yield Case(name=method, build=Field, call=solve(method, adjoint=False))
    yield Case(name="dopri5, adjoint", build=Field, call=solve("dopri5", adjoint=True))


def list_torchsde() -> Iterator[Case]:
    """Yield a stochastic differential equation with each solver."""

    class Field(nn.Module):
        """How points drift and diffuse."""

        noise_type, sde_type = "diagonal", "ito"

        def __init__(self):
            super().__init__()
            self.drift, self.spread = nn.Linear(2, 2), nn.Linear(2, 2)

        def f(self, _: Any, y: torch.Tensor) -> torch.Tensor:
            """Return the drift."""
            return self.drift(y)

        def g(self, _: Any, y: torch.Tensor) -> torch.Tensor:
            """Return the diffusion."""
            return self.spread(y).sigmoid()

    def solve(method: str) -> Callable[[nn.Module], Any]:
        library = import_module("torchsde")
        times = torch.linspace(0, 1, 3)

        def call(module: nn.Module) -> Any:
            start = torch.rand(4, 2)
            return library.sdeint(module, start, times.clone(), method=method, dt=0.2)

        return call

    for method in ("euler", "milstein", "srk"):
        yield Case(name=method, build=Field, call=solve(method))


KERNELS: dict[str, dict[str, Any]] = {
    "RBFKernel": {},
    "MaternKernel": {"nu": 2.5},
    "PeriodicKernel": {},
    "RQKernel": {},
    "LinearKernel": {},
    "CosineKernel": {},
    "SpectralMixtureKernel": {"num_mixtures": 2},
    "PolynomialKernel": {"power": 2},
    "PiecewisePolynomialKernel": {"q": 2},
    "RFFKernel": {"num_samples": 5, "num_dims": 1},
}


def build_process(kernel: str) -> nn.Module:
    """Build a Gaussian process with one kernel."""
    library = import_module("gpytorch")
    made = getattr(library.kernels, kernel)(**KERNELS[kernel])

    class Process(library.models.ExactGP):  # type: ignore[misc, name-defined]
        """A process with one kernel."""

        def __init__(self, x: torch.Tensor, y: torch.Tensor, likelihood: Any):
            super().__init__(x, y, likelihood)
            self.mean_module = library.means.ConstantMean()
            self.covar_module = library.kernels.ScaleKernel(made)

        def forward(self, x: torch.Tensor) -> Any:
            """Return the distribution at points."""
            mean, spread = self.mean_module(x), self.covar_module(x)
            return library.distributions.MultivariateNormal(mean, spread)

    x = torch.linspace(0, 1, 12)
    likelihood = library.likelihoods.GaussianLikelihood()
    return Process(x, torch.sin(6 * x), likelihood)


def train_process(module: nn.Module) -> None:
    """Do a step on the likelihood of the points that a process knows."""
    library = import_module("gpytorch")

    def loss(module: Any) -> Any:
        score = library.mlls.ExactMarginalLogLikelihood(module.likelihood, module)
        return -score(module(*module.train_inputs), module.train_targets)

    train(module, loss)


def list_gpytorch() -> Iterator[Case]:
    """Yield Gaussian processes with each kernel."""

    def call(module: Any) -> Any:
        seen = module.likelihood(module(torch.linspace(0, 1, 5)))
        return seen.mean, seen.variance

    for name in KERNELS:
        build = partial(build_process, name)
        yield Case(name=name, build=build, call=call, step=train_process)


def list_kan() -> Iterator[Case]:
    """Yield networks of splines."""
    sizes = {"width": [2, 3, 1], "grid": 3, "k": 3, "seed": 0, "auto_save": False}
    models = {
        "MultKAN": (sizes, on((6, 2))),
        "MultKAN, products": (sizes | {"width": [2, [2, 1], 1]}, on((6, 2))),
        "MultKAN, sparse": (sizes | {"sparse_init": True}, on((6, 2))),
    }
    yield from list_cases("kan.MultKAN", models)


def list_snntorch() -> Iterator[Case]:
    """Yield neurons that spike, between layers."""

    def build(kind: str, **settings: Any) -> nn.Module:
        neuron = getattr(import_module("snntorch"), kind)(**settings, init_hidden=True)
        return nn.Sequential(nn.Linear(3, 8), neuron, nn.Linear(8, 2))

    def call(module: nn.Module) -> Any:
        import_module("snntorch.utils").reset(module)
        return [module(torch.rand(4, 3)) for _ in range(3)]

    neurons: dict[str, dict[str, Any]] = {
        "Leaky": {"beta": 0.9, "learn_beta": True},
        "Synaptic": {"alpha": 0.9, "beta": 0.8},
        "Alpha": {"alpha": 0.9, "beta": 0.8},
        "Lapicque": {"beta": 0.9},
        "RLeaky": {"beta": 0.9, "linear_features": 8},
        "RSynaptic": {"alpha": 0.9, "beta": 0.8, "linear_features": 8},
        "SLSTM": {"input_size": 8, "hidden_size": 8},
    }
    for name, settings in neurons.items():

        def make(name: str = name, settings: dict[str, Any] = settings) -> nn.Module:
            return build(name, **settings)

        yield Case(name=name, build=make, call=call)


def list_spikingjelly() -> Iterator[Case]:
    """Yield networks that spike, over several steps."""

    def build(kind: str, **settings: Any) -> nn.Module:
        library = import_module("spikingjelly.activation_based.neuron")
        neuron = getattr(library, kind)(**settings)
        return nn.Sequential(nn.Linear(3, 8), neuron, nn.Linear(8, 2))

    def call(module: nn.Module) -> Any:
        import_module("spikingjelly.activation_based.functional").reset_net(module)
        return module(torch.rand(4, 5, 3))

    names = ("IFNode", "LIFNode", "ParametricLIFNode", "QIFNode", "EIFNode", "KLIFNode")
    for name in names:

        def make(name: str = name) -> nn.Module:
            return build(name, step_mode="m")

        yield Case(name=name, build=make, call=call)
