"""A notebook's cell that ran before a block, for explanations across cells.

Nothing here imports torch: the cells are kept before torch is imported.
"""

from collections.abc import Callable
from typing import NamedTuple


class EarlierCell(NamedTuple):
    """A cell that ran before a block.

    Attributes:
        name: What messages call it: ``In[2]``.
        typed: The cell as the user typed it, with the lines of its magics.
        seconds: Processor time that it took.
        failed_line: The line of its statement that raised; 0 if none did.
        read: Returns ``typed`` as Python, at the same lines.
    """

    name: str
    typed: str
    seconds: float = 0.0
    failed_line: int = 0
    read: Callable[[str], str] = str
