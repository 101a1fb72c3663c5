"""How the small model is split over the ranks of a mesh."""

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

ATTENTION = {f"attention.w{name}": ColwiseParallel() for name in "qkv"}
FEED_FORWARD = {f"feed_forward.w{n}": ColwiseParallel() for n in (1, 3)}


def split_tensors(model, mesh):
    """Split each layer's matrices; activations are whole on each rank."""
    rows = {name: RowwiseParallel() for name in ("attention.wo", "feed_forward.w2")}
    parallelize_module(
        model,
        mesh,
        {
            "tok_embeddings": RowwiseParallel(input_layouts=Replicate()),
            "output": ColwiseParallel(output_layouts=Replicate()),
        },
    )
    for layer in model.layers:
        parallelize_module(layer, mesh, ATTENTION | FEED_FORWARD | rows)


def split_sequences(model, mesh):
    """Split each layer's matrices, and activations along the sequence."""
    norms = {name: SequenceParallel() for name in ("attention_norm", "ffn_norm")}
    rows = {
        name: RowwiseParallel(output_layouts=Shard(1))
        for name in ("attention.wo", "feed_forward.w2")
    }
    inputs = {
        name: PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        )
        for name in ("attention", "feed_forward")
    }
    parallelize_module(
        model,
        mesh,
        {
            "tok_embeddings": RowwiseParallel(
                input_layouts=Replicate(), output_layouts=Shard(1)
            ),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Replicate()
            ),
        },
    )
    for layer in model.layers:
        parallelize_module(
            layer, mesh, norms | inputs | ATTENTION | FEED_FORWARD | rows
        )
