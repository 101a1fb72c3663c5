"""What the report weighs, and how fast it is in a real browser.

``python -m tests.benchmarks.report`` runs each cell in JupyterLab, in Chromium, and
prints a Markdown table: the median of five first paints, the worst of the rows and
boxes that are opened, the frames of one drag.
"""

import argparse
import json
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from meta_magic import record
from tests.browser.lab import RUN, open_chromium, open_in_lab, run_lab, write_notebook
from tests.minified import count_added

FIRST_PAINT = """() => {
  window.painted = null;
  const look = () => {
    const row = document.querySelector('.mm-live:not(.mm-root) [role=row] + [role=row]')
      ?? document.querySelector('.mm-live:not(.mm-root) [role=gridcell]');
    if (!row) return requestAnimationFrame(look);
    requestAnimationFrame(() => setTimeout(() => { window.painted = Date.now(); }));
  };
  look();
}"""
"""Notes when a row of the live report was painted: the task after its frame."""

TIME = """const timed = (act) => new Promise((resolve) => {
  const start = performance.now();
  act();
  requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - start)));
});
const live = document.querySelector('.mm-live:not(.mm-root)');
const show = (name) => [...live.querySelectorAll('[role=tab]')]
  .find((tab) => tab.textContent === name).click();
const settle = () => new Promise((resolve) => setTimeout(resolve, 300));
"""

OPEN_ROWS = (
    "async () => {"
    + TIME
    + """const opened = [];
  for (let i = 0; i < 12; i += 1) {
    const closed = live.querySelector('[role=treegrid] [aria-expanded=false] i');
    if (!closed) break;
    opened.push(await timed(() => closed.click()));
  }
  return opened;
}"""
)
"""Opens rows of the module tree one after the other; milliseconds to the next paint."""

OPEN_BOXES = (
    "async () => {"
    + TIME
    + """const mounted = await timed(() => show('Flow'));
  await settle();
  const svg = live.querySelector('svg[role=tree]');
  const press = (key) => svg.dispatchEvent(
    new KeyboardEvent('keydown', { key, bubbles: true }));
  const opened = [];
  press('Home');
  for (let i = 0; i < 40; i += 1) {
    const active = svg.querySelector('.mm-active');
    const is_closed = active?.getAttribute('aria-expanded') === 'false';
    const ms = await timed(() => press('ArrowRight'));
    if (is_closed) opened.push(ms);
  }
  return { mounted, opened };
}"""
)
"""Walks down the flow by its keys, and opens what it comes by."""

PAN = (
    "async () => {"
    + TIME
    + """const svg = live.querySelector('svg[role=tree]');
  const { left, top, width, height } = svg.getBoundingClientRect();
  const [x, y] = [left + width / 2, top + height / 2];
  const fire = (type, dx, dy) => svg.dispatchEvent(new PointerEvent(type, {
    clientX: x + dx, clientY: y + dy, buttons: 1, pointerId: 1, bubbles: true }));
  svg.setPointerCapture = () => {};
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  const frames = [];
  fire('pointerdown', 0, 0);
  let before = await frame();
  for (let i = 1; i <= 240; i += 1) {
    fire('pointermove', 60 * Math.sin(i / 20), -15 * i);
    const now = await frame();
    frames.push(now - before);
    before = now;
  }
  fire('pointerup', 0, 0);
  return frames;
}"""
)
"""Drags the flow by 15 pixels a frame; milliseconds of each frame."""


LOAD = """%load_ext meta_magic
import time, torch
from torch import nn
"""

LLAMA = """from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(
    hidden_size={width}, intermediate_size={inner}, num_hidden_layers={depth},
    num_attention_heads={heads}, num_key_value_heads=8, vocab_size=128256)
"""

RUN_LLAMA = """model = LlamaForCausalLM(config)
out = model(torch.zeros(1, 128, dtype=torch.long))
"""

GPT2 = "from transformers import GPT2Config, GPT2LMHeadModel\n"

SMALL = """model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(8)))
y = model(torch.zeros(3, 8)).sum()
"""

RUN_GPT2 = """model = GPT2LMHeadModel(GPT2Config())
y = model(torch.zeros(1, 128, dtype=torch.long))
"""

CELLS = {
    "8 layers": ("", SMALL),
    "GPT-2": (GPT2, RUN_GPT2),
    "Llama-70B": (LLAMA.format(width=8192, inner=28672, depth=80, heads=64), RUN_LLAMA),
    "Llama-405B": (
        LLAMA.format(width=16384, inner=53248, depth=126, heads=128),
        RUN_LLAMA,
    ),
    "155 layers of it, with backward": (
        LLAMA.format(width=16384, inner=53248, depth=155, heads=128),
        f"{RUN_LLAMA}out.logits.sum().backward()\n",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One row of the table.

    Attributes:
        name: The cell.
        n_ops: Operators recorded.
        payload_nbytes: As sent.
        saved_nbytes: Of the saved output, with the JavaScript.
        paint_seconds: From the end of the cell's code to the first paint; the median.
        rows: Milliseconds to open each of some rows of the module tree.
        mounted: Milliseconds until the flow is there.
        boxes: Milliseconds to open each of some boxes of the flow.
        frames: Milliseconds of each frame while panning.
    """

    name: str
    n_ops: int
    payload_nbytes: int
    saved_nbytes: int
    paint_seconds: float
    rows: list[float]
    mounted: float
    boxes: list[float]
    frames: list[float]


TELL = """import json
from meta_magic.view.payload import pack
print(json.dumps([ended, len(_meta.ops), len(pack(_meta))]))"""

TELL_MEMORY = """import gc, psutil
gc.collect()
print(psutil.Process().memory_info().rss)"""

FILE = "report.ipynb"
WARM_UP = "%%meta\nnn.init.normal_(torch.empty(3)); nn.Linear(2, 2)"
LIVE = ".mm-live:not(.mm-root)"
N_RERUNS = 20
N_PAINTS = 5


def measure(page: Any, url: str, root: Path, name: str) -> Measured:
    """Run a cell a few times, and measure its last report."""
    setup, cell = CELLS[name]
    timed = f"%%meta\n{cell}ended = time.time()\n"
    write_notebook(root / FILE, LOAD + setup, WARM_UP, timed, TELL)
    open_in_lab(page, url, FILE)
    page.evaluate(RUN, 0)
    page.evaluate(RUN, 1)
    page.wait_for_selector(LIVE)
    seconds = []
    for _ in range(N_PAINTS):
        command(page, "notebook:clear-all-cell-outputs")
        page.wait_for_selector(LIVE, state="detached")
        page.evaluate(FIRST_PAINT)
        page.evaluate(RUN, 2)
        page.wait_for_function("() => window.painted", timeout=120_000)
        painted = page.evaluate("() => window.painted") / 1000
        page.evaluate(RUN, 3)
        ended, n_ops, payload_nbytes = json.loads(last_print(page))
        seconds.append(painted - ended)
    page.wait_for_timeout(1000)
    rows = page.evaluate(OPEN_ROWS)
    flow = page.evaluate(OPEN_BOXES)
    frames = page.evaluate(PAN)
    return Measured(
        name=name,
        n_ops=n_ops,
        payload_nbytes=payload_nbytes,
        saved_nbytes=save(page, root / FILE, 2),
        paint_seconds=median(seconds),
        rows=rows,
        mounted=flow["mounted"],
        boxes=flow["opened"],
        frames=frames,
    )


def command(page: Any, name: str) -> None:
    """Have JupyterLab do something, and wait until it has."""
    page.evaluate("name => jupyterapp.commands.execute(name)", name)


def last_print(page: Any) -> str:
    """Return the last text that a cell printed."""
    text: str = page.locator(".jp-OutputArea-output pre").last.inner_text()
    return text


def save(page: Any, path: Path, cell: int) -> int:
    """Save the notebook; bytes of the HTML that a cell's report left in it."""
    command(page, "docmanager:save")
    outputs = json.loads(path.read_text())["cells"][cell]["outputs"]
    html = [o["data"]["text/html"] for o in outputs if "text/html" in o.get("data", {})]
    return len("".join(html[0]).encode())


def measure_reruns(page: Any, url: str, root: Path) -> tuple[list[int], int]:
    """Return the kernel's bytes over reruns of the same cell, and the live reports."""
    setup, cell = CELLS["GPT-2"]
    write_notebook(root / FILE, LOAD + setup, f"%%meta\n{cell}", TELL_MEMORY)
    open_in_lab(page, url, FILE)
    page.evaluate(RUN, 0)
    nbytes = []
    for _ in range(N_RERUNS + 1):
        page.evaluate(RUN, 1)
        page.evaluate(RUN, 2)
        nbytes.append(int(last_print(page)))
    page.wait_for_timeout(1000)
    return nbytes, page.locator(LIVE).count()


@contextmanager
def open_page(browser: Any) -> Iterator[Any]:
    """Yield a page, whose kernel is shut down in the end."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    yield page
    page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    page.close()


def quantile(values: list[float], fraction: float) -> float:
    """Return the value below which a fraction of all lies."""
    return sorted(values)[min(len(values) - 1, int(fraction * len(values)))]


def format_row(row: Measured) -> str:
    """Return a row of the table."""
    cells = (
        row.name,
        f"{row.n_ops:,}",
        f"{row.payload_nbytes / 1000:.1f} KB",
        f"{row.saved_nbytes / 1000:.0f} KB",
        f"{row.paint_seconds:.2f} s",
        f"{max(row.rows, default=0):.0f} ms",
        f"{row.mounted:.0f} ms",
        f"{max(row.boxes, default=0):.0f} ms",
        f"{quantile(row.frames, 0.5):.1f}, {quantile(row.frames, 0.95):.1f} ms",
    )
    return f"| {' | '.join(cells)} |"


def print_table(browser: Any, url: str, root: Path, names: Sequence[str]) -> None:
    """Measure each cell, and print its row."""
    print(
        "| cell | operators | payload | saved output | first paint | open a row "
        "| show Flow | open a box | frame (median, 95 %) |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name in names:
        with open_page(browser) as page:
            print(format_row(measure(page, url, root, name)), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(CELLS), metavar="NAME")
    names = parser.parse_args().names
    with record() as trace:
        torch.zeros(2)
    script = count_added(trace) / 1000
    day, machine = datetime.now(UTC).date(), platform.machine()
    print(
        f"{day}, {os.cpu_count()} cores, {machine}; script and styles {script:.1f} KB\n"
    )
    with (
        TemporaryDirectory() as folder,
        run_lab(Path(folder)) as url,
        open_chromium() as browser,
    ):
        print_table(browser, url, Path(folder), names)
        with open_page(browser) as page:
            nbytes, n_live = measure_reruns(page, url, Path(folder))
    first, last = nbytes[0] / 1e6, nbytes[-1] / 1e6
    print(
        f"\nGPT-2 run {N_RERUNS} times more: kernel {first:.0f} MB, then {last:.0f} "
        f"MB; live reports: {n_live}"
    )


if __name__ == "__main__":
    main()
