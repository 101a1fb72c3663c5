"""Keep what a recording does out of the graph that ``torch.jit.trace`` makes."""

from meta_magic.torch_private.modes import set_tracing_state, tracing_state

__all__ = ["WithoutTracing"]


class WithoutTracing:
    """Context manager in which ``torch.jit`` does not trace, and sizes are integers."""

    def __enter__(self) -> None:
        self._state = tracing_state()
        set_tracing_state(None)

    def __exit__(self, *_: object) -> None:
        set_tracing_state(self._state)
