"""transformers, of Hugging Face."""

from typing import Final

from meta_magic.recording.intercept.libraries.library import Library

TRANSFORMERS: Final = Library(
    # Makes a tensor and reads its device: on meta it skips all initialization.
    make_real=frozenset({"get_torch_context_manager_or_global_device"}),
    # Chooses a dtype by the device, for its kernels.
    reported_device=frozenset({"grouped_mm_experts_forward"}),
    # Without it a reset would only call the layers' ``reset_parameters``, and report
    # other parameters as uninitialized.
    initialize=("_init_weights",),
)
