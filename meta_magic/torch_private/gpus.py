"""What this machine has, whatever a recording makes of it; who seeded GPUs last."""

from torch import cuda

# Without it a cell would draw for a planned GPU what the last one drew, or would not
# although a seed was set in between.
from torch.cuda import _lazy_seed_tracker as seeds

# Of its own name here: a recording replaces torch's, and one in it would ask that.
from torch.cuda import is_available as has_gpu

__all__ = ["has_gpu", "last_seeding"]


def last_seeding() -> tuple[object, ...]:
    """Return what says when GPUs were seeded: each time it is another.

    Torch keeps each seeding until GPUs are used.
    """
    started = [generator.initial_seed() for generator in cuda.default_generators]
    return seeds.manual_seed_all_cb, seeds.manual_seed_cb, *started
