"""What this machine has, whatever a recording makes of it."""

# Of its own name here: a recording replaces torch's, and one in it would ask that.
from torch.cuda import is_available as has_gpu

__all__ = ["has_gpu"]
