"""Keep a process that was forked from a kernel from speaking to its front end."""

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.getipython import get_ipython

__all__ = ["silence_shell"]


def silence_shell() -> None:
    """Have the shell of this process, a child, show nothing from now on."""
    shell = get_ipython()
    if shell is None:
        return
    shell.display_pub = CapturingDisplayPublisher(shell=shell)
    shell.displayhook = DisplayHook(shell=shell)
