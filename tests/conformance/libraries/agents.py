"""Agents: policies and networks of values."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
from torch import nn

from tests.conformance.libraries.cases import Case, list_cases, on

ROWS = on((4, 3))


def build_actor(name: str, **settings: Any) -> nn.Module:
    """Build an actor, or a network of values."""
    spaces = import_module("gymnasium.spaces")
    file = import_module(f"stable_baselines3.{name}.policies")
    kind = {"dqn": "QNetwork"}.get(name, "Actor")
    seen, acts = spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))
    made = import_module("stable_baselines3.common.torch_layers")
    if name == "dqn":
        acts = spaces.Discrete(2)
    extractor = made.FlattenExtractor(seen)
    sizes = {"net_arch": [8, 8], "features_extractor": extractor, "features_dim": 3}
    return getattr(file, kind)(seen, acts, **sizes, **settings)


def build_actor_critic(**settings: Any) -> nn.Module:
    """Build a policy of an actor and a critic."""
    spaces = import_module("gymnasium.spaces")
    file = import_module("stable_baselines3.common.policies")
    acts = settings.pop("acts", None) or spaces.Box(-1, 1, (2,))
    seen = settings.pop("seen", None) or spaces.Box(-1, 1, (3,))
    kind = getattr(file, settings.pop("kind", "ActorCriticPolicy"))
    return kind(seen, acts, lambda _: 0.01, **settings)


def build_discrete() -> nn.Module:
    """Build a policy of two choices."""
    spaces = import_module("gymnasium.spaces")
    return build_actor_critic(acts=spaces.MultiDiscrete([2, 3]))


def build_of_pictures() -> nn.Module:
    """Build a policy that sees pictures."""
    spaces = import_module("gymnasium.spaces")
    seen = spaces.Box(0, 255, (3, 36, 36), dtype="uint8")
    return build_actor_critic(seen=seen, kind="ActorCriticCnnPolicy")


def on_pictures(module: nn.Module) -> Any:
    """Call a policy on two pictures."""
    return module(torch.randint(0, 256, (2, 3, 36, 36), dtype=torch.uint8))


POLICIES: dict[str, Any] = {
    "ActorCriticPolicy": build_actor_critic,
    "ActorCriticPolicy, discrete": build_discrete,
    "ActorCriticPolicy, state dependent": lambda: build_actor_critic(use_sde=True),
    "ActorCriticCnnPolicy": (build_of_pictures, on_pictures),
    "dqn.QNetwork": lambda: build_actor("dqn"),
    "td3.Actor": lambda: build_actor("td3"),
    "sac.Actor": lambda: build_actor("sac"),
}


def list_stable_baselines3() -> Iterator[Case]:
    """Yield the policies of its agents."""
    yield from list_cases("stable_baselines3", POLICIES, ROWS)


SIZES = {"in_features": 3, "out_features": 2, "num_cells": [8]}
AGENTS = {"n_agent_inputs": 3, "n_agent_outputs": 2, "n_agents": 2, "depth": 1}
MIXER = {"state_shape": (5,), "mixing_embed_dim": 4, "n_agents": 2}


def mix(module: nn.Module) -> Any:
    """Call a mixer on the values of agents and a state."""
    return module(torch.rand(4, 2, 1), torch.rand(4, 5))


NETWORKS: dict[str, Any] = {
    "MLP": SIZES
    | {"norm_class": nn.LayerNorm, "dropout": 0.1}
    | {"norm_kwargs": {"normalized_shape": 8}},
    "MLP, noisy": lambda: import_module("torchrl.modules").MLP(
        **SIZES, layer_class=import_module("torchrl.modules").NoisyLinear
    ),
    "ConvNet": (
        {"in_features": 3, "num_cells": [4, 4], "strides": 2},
        on((2, 3, 16, 16)),
    ),
    "DuelingCnnDQNet": (
        {"out_features": 2, "mlp_kwargs": {"num_cells": [8], "depth": 1}}
        | {
            "cnn_kwargs": {"in_features": 3, "num_cells": [4], "strides": 2}
            | {"kernel_sizes": 3}
        },
        on((2, 3, 16, 16)),
    ),
    "DdpgMlpActor": {"action_dim": 2, "mlp_net_kwargs": {"in_features": 3}},
    "MultiAgentMLP": (
        AGENTS | {"centralized": False, "share_params": False, "num_cells": 8},
        on((4, 2, 3)),
    ),
    "MultiAgentMLP, shared": (
        AGENTS | {"centralized": True, "share_params": True, "num_cells": 8},
        on((4, 2, 3)),
    ),
    "QMixer": (MIXER | {"device": "cpu"}, mix),
    "VDNMixer": (lambda: nn.Sequential(nn.Linear(1, 1), build_mixer()), on((4, 2, 1))),
    "DecisionTransformer": (
        {"state_dim": 3, "action_dim": 2},
        on((2, 4, 3), (2, 4, 2), (2, 4, 1)),
    ),
    "LSTM": ({"input_size": 3, "hidden_size": 4}, on((2, 5, 3))),
    "GRU": ({"input_size": 3, "hidden_size": 4}, on((2, 5, 3))),
    "NormalParamExtractor": lambda: nn.Sequential(
        nn.Linear(3, 4), import_module("torchrl.modules").NormalParamExtractor()
    ),
    "BatchRenorm1d": {"num_features": 3},
}


def build_mixer() -> nn.Module:
    """Build a mixer that adds up."""
    made: nn.Module = import_module("torchrl.modules").VDNMixer(2, "cpu")
    return made


def list_torchrl() -> Iterator[Case]:
    """Yield networks of its agents."""
    yield from list_cases("torchrl.modules", NETWORKS, ROWS)
