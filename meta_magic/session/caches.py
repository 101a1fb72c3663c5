"""The signature caches that the recordings of a process share, one for each device."""

from typing import Final

from meta_magic.recording.signatures.cache import SignatureCache
from meta_magic.torch_private.dispatcher import kernels_put_in
from meta_magic.torch_private.modes import dispatch_mode_stack
from meta_magic.trace.options import Options

__all__ = ["pick_cache"]

MAX_SHARED_SIGNATURES: Final = 100_000

shared_cache_by_device: dict[str, SignatureCache] = {}
"""The same call of attention is other operators on another device."""

known_kernels: set[str] = set()
"""Those that libraries had put in when the caches were used last."""


def pick_cache(options: Options) -> SignatureCache:
    """Return the cache to record with: a shared one, or a private one that runs all.

    Under another dispatch mode every kernel must run, so that this mode sees it: a
    served call would look to it like ``empty_strided``.
    """
    if not options.cache or dispatch_mode_stack():
        return SignatureCache(is_serving=False)
    if known_kernels != kernels_put_in:
        forget_replaced_kernels()
    shared_cache = shared_cache_by_device.get(options.device)
    if shared_cache is None:
        shared_cache = SignatureCache(is_serving=True)
        shared_cache_by_device[options.device] = shared_cache
    if shared_cache.n_entries > MAX_SHARED_SIGNATURES:
        shared_cache.clear()
    return shared_cache


def forget_replaced_kernels() -> None:
    """Clear the caches if a library changed what an operator of torch's own runs."""
    changed = known_kernels ^ kernels_put_in
    if any(name.startswith("aten/") for name in changed):
        for cache in shared_cache_by_device.values():
            cache.clear()
    known_kernels.symmetric_difference_update(changed)
