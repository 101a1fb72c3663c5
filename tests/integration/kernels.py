"""A real kernel of this Python, driven as a front end drives it."""

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client import KernelManager

ANSI = re.compile(r"\x1b\[[0-9;]*m")
ARROW = re.compile(r"^-+> (\d+)", re.MULTILINE)
REPOSITORY = Path(__file__).parents[2]
TIMEOUT = 60
CLEAN = "(0, 0, 'cpu')"


WIDGET = "application/vnd.jupyter.widget-view+json"


@dataclass(kw_only=True)
class CellRun:
    """What a front end received for one cell.

    Attributes:
        content: Of the reply on the shell channel.
        outputs: What stands below the cell in the end: display updates are applied.
        messages: (type, content) of every message, in order.
    """

    content: dict[str, Any] = field(default_factory=dict)
    outputs: list[dict[str, Any]] = field(default_factory=list)
    messages: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def status(self) -> str:
        return self.content["status"]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [content for kind, content in self.messages if kind == "error"]

    @property
    def traceback(self) -> str:
        (error,) = self.errors
        return ANSI.sub("", "\n".join(error["traceback"]))

    @property
    def marked_lines(self) -> list[int]:
        """Line numbers at which the traceback's arrows point, outermost first."""
        return [int(line) for line in ARROW.findall(self.traceback)]

    @property
    def value(self) -> str | None:
        """Text of ``Out[n]``."""
        results = [c for kind, c in self.messages if kind == "execute_result"]
        return results[0]["data"]["text/plain"] if results else None

    def stream(self, name: str) -> str:
        return "".join(
            content["text"]
            for kind, content in self.messages
            if kind == "stream" and content["name"] == name
        )

    @property
    def plain_outputs(self) -> list[dict[str, Any]]:
        """What stands below the cell without the live report."""
        return [o for o in self.outputs if WIDGET not in o.get("data", {})]

    @property
    def reports(self) -> list[dict[str, str]]:
        return [o["data"] for o in self.outputs if "text/html" in o.get("data", {})]


class RunningKernel:
    """A kernel with the extension, torch and ``nn`` loaded."""

    def __init__(self, directory: Path, *, is_loaded: bool = True) -> None:
        self.manager = KernelManager()
        environment = kernel_environment(directory)
        self.manager.start_kernel(env=environment, cwd=str(directory))
        self._client = self.manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=TIMEOUT)
        if is_loaded:
            start = "%load_ext meta_magic\nimport asyncio, torch\nfrom torch import nn"
            assert self.run(start).status == "ok"

    def run(
        self,
        source: str,
        on_message: Callable[[str, dict[str, Any]], None] | None = None,
        **options: Any,
    ) -> CellRun:
        """Run a cell to its end; ``on_message`` gets each message as it comes."""
        options.setdefault("allow_stdin", False)
        # Old ipykernels abort what comes within a moment of an error.
        options = {"stop_on_error": False, **options}
        identity = self._client.execute(source, **options)
        run = CellRun()
        deadline = time.monotonic() + TIMEOUT
        while run.messages[-1:] != [("status", {"execution_state": "idle"})]:
            # A cell that hangs may still send its progress: each message has less time.
            left = max(deadline - time.monotonic(), 0)
            message = self._client.get_iopub_msg(timeout=left)
            if message["parent_header"].get("msg_id") == identity:
                kind, content = message["msg_type"], message["content"]
                run.messages.append((kind, content))
                apply_message(run.outputs, kind, content)
                if on_message is not None:
                    on_message(kind, content)
        while not run.content:
            reply = self._client.get_shell_msg(timeout=TIMEOUT)
            if reply["parent_header"].get("msg_id") == identity:
                run.content = reply["content"]
        return run

    def run_until_interrupted(self, source: str) -> CellRun:
        """Run a cell that prints ``started``, and interrupt it there."""

        def interrupt(kind: str, content: dict[str, Any]) -> None:
            if kind == "stream" and "started" in content["text"]:
                self.manager.interrupt_kernel()

        return self.run(source, interrupt)

    def torch_state(self) -> str | None:
        """Return the modes and the default device that the kernel's cells see."""
        return self.run(
            "from torch.overrides import _get_current_function_mode_stack\n"
            "from torch.utils._python_dispatch import (\n"
            "    _get_current_dispatch_mode_stack)\n"
            "(len(_get_current_dispatch_mode_stack()),\n"
            " len(_get_current_function_mode_stack()), torch.ones(1).device.type)",
            store_history=False,
        ).value

    def stop(self) -> None:
        self._client.stop_channels()
        # A kernel whose lines are counted saves them at its end.
        self.manager.shutdown_kernel(now="COVERAGE_PROCESS_CONFIG" not in os.environ)


def apply_message(
    outputs: list[dict[str, Any]], kind: str, content: dict[str, Any]
) -> None:
    """Change a cell's outputs as a notebook does on such a message."""
    if kind in {"stream", "display_data", "execute_result", "error"}:
        outputs.append(dict(content))
    elif kind == "update_display_data":
        wanted = content["transient"]["display_id"]
        for output in outputs:
            if output.get("transient", {}).get("display_id") == wanted:
                output["data"] = content["data"]
    elif kind == "clear_output":
        outputs.clear()


def kernel_environment(directory: Path) -> dict[str, str]:
    """Return an environment in which nothing of the user's own IPython is read."""
    paths = [os.environ.get("PYTHONPATH", ""), str(REPOSITORY)]
    return {
        **os.environ,
        "IPYTHONDIR": str(directory / "ipython"),
        "JUPYTER_CONFIG_DIR": str(directory / "jupyter"),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
