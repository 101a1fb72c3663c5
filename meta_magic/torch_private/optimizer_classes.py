"""What torch knows of the classes of optimizers."""

from torch.optim import Optimizer

__all__ = ["list_used_classes"]


def list_used_classes() -> frozenset[type[Optimizer]]:
    """Return the classes of optimizers of which torch ever made one.

    Without the mark that it leaves on them, all objects are looked through for
    optimizers whenever a module is made real.
    """
    known: set[type[Optimizer]] = set()
    to_see = [Optimizer]
    while to_see:
        kind = to_see.pop()
        if kind not in known:
            known.add(kind)
            to_see += kind.__subclasses__()
    return frozenset(k for k in known if getattr(k.step, "hooked", False))
