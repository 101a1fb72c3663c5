"""Models of graphs, molecules and clouds of points."""

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn

from tests.conformance.libraries.cases import Case, list_cases

N_NODES, N_EDGES = 10, 24


def make_edges() -> torch.Tensor:
    """Return the ends of edges."""
    return torch.randint(0, N_NODES, (2, N_EDGES))


def on_graph(module: nn.Module) -> Any:
    """Call a model on the features of nodes and edges."""
    return module(torch.rand(N_NODES, 8), make_edges())


def on_weighted_graph(module: nn.Module) -> Any:
    """Call a model on nodes, edges and features of edges."""
    return module(torch.rand(N_NODES, 8), make_edges(), torch.rand(N_EDGES, 4))


def on_molecule(module: nn.Module) -> Any:
    """Call a model on the numbers and places of atoms of two molecules."""
    batch = torch.arange(N_NODES) // 5
    return module(torch.randint(1, 9, (N_NODES,)), torch.rand(N_NODES, 3), batch)


def join_atoms(
    places: torch.Tensor, batch: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the pairs of atoms of the same molecule that are near, and how far."""
    distances = torch.cdist(places, places)
    is_near = (distances < 0.8) & (batch[:, None] == batch)
    pairs = (is_near & ~torch.eye(N_NODES, dtype=torch.bool)).nonzero().T
    return pairs, (places[pairs[0]] - places[pairs[1]]).norm(dim=-1)


class Layers(nn.Module):
    """Two layers of one kind, and what is read out of the graph."""

    def __init__(self, make: Callable[[], nn.Module], pool: str):
        super().__init__()
        geometric = import_module("torch_geometric.nn")
        self.layers = nn.ModuleList([make(), make()])
        self.pool = getattr(geometric, pool)
        self.norm = geometric.GraphNorm(8)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Return a row for each of two graphs."""
        for layer in self.layers:
            x = self.norm(layer(x, edges)).relu()
        return self.pool(x, torch.arange(N_NODES) // 5)


LAYERS: dict[str, dict[str, Any]] = {
    "GCNConv": {},
    "ChebConv": {"K": 3},
    "SAGEConv": {"aggr": "max"},
    "GATConv": {"heads": 2, "concat": False},
    "GATv2Conv": {"heads": 2, "concat": False},
    "TransformerConv": {"heads": 2, "concat": False, "beta": True},
    "TAGConv": {},
    "ARMAConv": {"num_stacks": 2},
    "SGConv": {"K": 2},
    "GraphConv": {},
    "GatedGraphConv": {"num_layers": 2},
    "ResGatedGraphConv": {},
    "FeaStConv": {"heads": 2},
    "LEConv": {},
    "ClusterGCNConv": {},
    "GENConv": {},
    "FiLMConv": {},
    "SuperGATConv": {"heads": 2, "concat": False},
    "EGConv": {"num_heads": 2, "num_bases": 2},
    "MFConv": {},
}
POOLS = ("global_mean_pool", "global_max_pool", "global_add_pool")


def build_layers(name: str, pool: str) -> nn.Module:
    """Build two layers of a kind."""
    kind = getattr(import_module("torch_geometric.nn"), name)
    out = {} if name == "GatedGraphConv" else {"in_channels": 8}
    return Layers(partial(kind, out_channels=8, **out, **LAYERS[name]), pool)


def list_torch_geometric() -> Iterator[Case]:
    """Yield networks of its layers, and its models."""
    for number, name in enumerate(LAYERS):
        build = partial(build_layers, name, POOLS[number % len(POOLS)])
        yield Case(name=name, build=build, call=on_graph)
    basic = {"in_channels": 8, "hidden_channels": 8, "num_layers": 2, "out_channels": 3}
    schnet = {"hidden_channels": 8, "num_filters": 8, "num_interactions": 2}
    unet = {"in_channels": 8, "hidden_channels": 8, "out_channels": 3, "depth": 2}
    models: dict[str, Any] = {
        "nn.models.GCN": basic,
        "nn.models.GIN": basic | {"jk": "lstm", "norm": "batch_norm"},
        "nn.models.PNA": basic
        | {"aggregators": ["mean", "std"], "scalers": ["identity"], "deg": None}
        | {"deg": torch.tensor([1, 3, 5])},
        "nn.models.EdgeCNN": basic,
        "nn.models.GraphUNet": unet,
        "nn.models.AttentiveFP": (
            basic | {"edge_dim": 4, "num_timesteps": 2},
            lambda module: module(
                torch.rand(N_NODES, 8),
                make_edges(),
                torch.rand(N_EDGES, 4),
                torch.arange(N_NODES) // 5,
            ),
        ),
        "nn.models.SchNet": (schnet | {"interaction_graph": join_atoms}, on_molecule),
        "nn.models.LightGCN": (
            {"num_nodes": N_NODES, "embedding_dim": 8, "num_layers": 2},
            lambda module: module(make_edges()),
        ),
        "nn.models.LINKX": basic | {"num_nodes": N_NODES},
        "nn.models.NeuralFingerprint": basic,
    }
    yield from list_cases("torch_geometric", models, on_graph)


def list_e3nn() -> Iterator[Case]:
    """Yield networks that turn with their input."""

    def build(kind: str, *given: Any, **settings: Any) -> nn.Module:
        return getattr(import_module("e3nn.o3"), kind)(*given, **settings)

    def on_features(module: nn.Module) -> Any:
        return module(torch.randn(4, 8 + 12))

    def on_pairs(module: nn.Module) -> Any:
        return module(torch.randn(4, 20), torch.randn(4, 9))

    features, directions = "8x0e + 4x1o", "0e + 1o + 2e"
    gate = ("8x0e", [torch.tanh], "4x0e", [torch.sigmoid], "4x1o")
    models: dict[str, Any] = {
        "Linear": lambda: build("Linear", features, features),
        "FullyConnectedTensorProduct": (
            lambda: build(
                "FullyConnectedTensorProduct", features, directions, features
            ),
            on_pairs,
        ),
        "Gate": lambda: nn.Sequential(
            build("Linear", features, "8x0e + 4x0e + 4x1o"),
            import_module("e3nn.nn").Gate(*gate),
        ),
        "BatchNorm": lambda: import_module("e3nn.nn").BatchNorm(features),
    }
    yield from list_cases("e3nn", models, on_features)


def list_egnn_pytorch() -> Iterator[Case]:
    """Yield equivariant networks of distances."""

    def call(module: nn.Module) -> Any:
        return module(torch.rand(1, 8, 16), torch.rand(1, 8, 3))

    def call_on_tokens(module: nn.Module) -> Any:
        return module(torch.randint(0, 5, (1, 8)), torch.rand(1, 8, 3))

    network = {"num_tokens": 5, "dim": 16, "depth": 2, "num_nearest_neighbors": 3}
    models = {
        "EGNN": {"dim": 16},
        "EGNN, nearest": {
            "dim": 16,
            "num_nearest_neighbors": 3,
            "norm_coors": True,
            "dropout": 0.1,
        },
        "EGNN_Network": (network, call_on_tokens),
    }
    yield from list_cases("egnn_pytorch", models, call)


def list_point_transformer_pytorch() -> Iterator[Case]:
    """Yield attention between points."""

    def call(module: nn.Module) -> Any:
        mask = torch.ones(1, 8, dtype=torch.bool)
        return module(torch.rand(1, 8, 16), torch.rand(1, 8, 3), mask=mask)

    sizes = {"dim": 16, "pos_mlp_hidden_dim": 8, "attn_mlp_hidden_mult": 2}
    near = {"num_neighbors": 3}
    models = {
        "PointTransformerLayer": (sizes, call),
        "PointTransformerLayer, nearest": (sizes | near, call),
        "MultiheadPointTransformerLayer": (sizes | near | {"heads": 2}, call),
    }
    yield from list_cases("point_transformer_pytorch", models)
