"""transformers, of Hugging Face."""

from typing import Final

from meta_magic.recording.intercept.libraries.library import Library

__all__ = ["TRANSFORMERS"]

TRANSFORMERS: Final = Library(
    # Makes a tensor to see on which device it lies, and leaves out all initialization
    # if that is meta.
    make_real=frozenset({"get_torch_context_manager_or_global_device"}),
    # Looks at the device to choose a dtype that its kernels take.
    reported_device=frozenset({"grouped_mm_experts_forward"}),
    # Without it a reset gives models what their layers' ``reset_parameters`` does, and
    # reports as uninitialized what that does not reach.
    initialize=("_init_weights",),
)
