"""``Out[n]``: tensors of recorded cells are shown with values, if these take little."""

import sys
from typing import TYPE_CHECKING, Any

from meta_magic.magic.run import read_limits

if TYPE_CHECKING:
    from meta_magic.magic.magics import MetaMagics

__all__ = ["ValueFormats"]


class ValueFormats:
    """Stands for the shell's function that writes what is shown of an object.

    By instance, as IPython asks types alone for formats, and no table or list of
    tensors would ask the one of a tensor.

    Args:
        magics: Belongs to the shell, and has the limits of a value.
    """

    def __init__(self, magics: "MetaMagics") -> None:
        self._magics = magics
        shell: Any = magics.shell
        self._formatter = shell.display_formatter
        self._before = self._formatter.format
        self._formatter.format = self.format

    def remove(self) -> None:
        """Leave the shell as it was, unless somebody else stands there meanwhile."""
        if vars(self._formatter).get("format") == self.format:
            self._formatter.format = self._before

    def format(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the shell shows of an object, in all formats.

        A recorded cell shows a tensor on the device where it would lie; plain code,
        which has it on meta, sees that.
        """
        if "meta_magic.session.recording" not in sys.modules:  # nothing was recorded
            return self._before(*args, **kwargs)
        from meta_magic.session.recording import (  # noqa: PLC0415  needs torch
            run_with_values,
        )

        return run_with_values(
            lambda: self._before(*args, **kwargs),
            read_limits(self._magics).little(),  # nobody waits for it
            has_places=self._magics.is_recorded,
        )
