"""Names of other libraries than torch, and what is lost if they are renamed."""

from typing import Final

__all__ = ["TRANSFORMERS_INITIALIZE"]

TRANSFORMERS_INITIALIZE: Final = "_init_weights"
"""The method by which transformers' models initialize each of their submodules.

Without it ``init="reset"`` gives them what their layers' ``reset_parameters`` does, and
reports as uninitialized what that does not reach.
"""
