"""Where the time goes from the end of a small cell's code to its report on screen.

``python -m tests.benchmarks.stages`` runs each cell in JupyterLab, in Chromium, and
prints a Markdown table: medians of the time that each stage ends, in milliseconds from
the end of the code. The kernel and the browser read the same clock.
"""

import argparse
import json
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.report import CELLS, FILE, LIVE, LOAD, WARM_UP, command, open_page
from tests.browser.lab import RUN, open_chromium, open_in_lab, run_lab, write_notebook

LINEAR = "y = nn.Linear(4, 3)(torch.ones(2, 4))\n"

NAMES = ("Linear", "8 layers", "GPT-2")

STAGES = {
    "_keep_trace": "recording finished",
    "pack": "payload",
    "render_snapshot": "saved HTML",
    "build_bundle": "text beside it",
    "show_report": "widget made and sent",
    "finish": "all sent",
    "told": "browser has the HTML",
    "mounted": "live report drawn",
    "painted": "painted",
}
"""What ends, by what ends it: a function of ours, or a name in the page."""

STAMP = """
import functools, json
from meta_magic.magic import run
from meta_magic.view import html, page, payload, widgets
stamps, nbytes = {}, {}
def stamp(owner, name):
    function = getattr(owner, name)
    @functools.wraps(function)
    def stamped(*args, **kwargs):
        returned = function(*args, **kwargs)
        stamps[name] = time.time()
        if isinstance(returned, (str, bytes)):
            nbytes[name] = len(returned)
        return returned
    setattr(owner, name, stamped)
stamp(run.Run, "_keep_trace")
stamp(run.Run, "finish")
stamp(payload, "pack")
stamp(page, "render_snapshot")
stamp(html, "build_bundle")
stamp(widgets, "show_report")
"""
"""Has the kernel note when each function of ours returned, and how much."""

TELL = "print(json.dumps([ended, stamps, nbytes]))"

WATCH = """() => {
  const now = () => performance.timeOrigin + performance.now();
  window.seen = {};
  const note = (name, selector) => {
    if (!seen[name] && document.querySelector(selector)) seen[name] = now();
    return seen[name];
  };
  const observer = new MutationObserver(() => {
    note("told", ".mm-root");
    if (!note("mounted", ".mm-live:not(.mm-root) [role=treegrid]")) return;
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => { seen.painted = now(); }));
  });
  observer.observe(document.body, { childList: true, subtree: true });
}"""
"""Notes when the saved report came, the live one was drawn, and its frame was over."""


def measure(
    page: Any, url: str, root: Path, name: str, n_runs: int
) -> tuple[dict[str, float], dict[str, int]]:
    """Return when each stage of a cell ended, in milliseconds, and what is sent."""
    setup, cell = ("", LINEAR) if name == "Linear" else CELLS[name]
    timed = f"%%meta\n{cell}ended = time.time()\n"
    write_notebook(root / FILE, LOAD + setup, WARM_UP, STAMP, timed, TELL)
    open_in_lab(page, url, FILE)
    for number in range(3):
        page.evaluate(RUN, number)
    page.wait_for_selector(LIVE)
    runs: dict[str, list[float]] = {stage: [] for stage in STAGES}
    for _ in range(n_runs + 1):
        command(page, "notebook:clear-all-cell-outputs")
        page.wait_for_selector(LIVE, state="detached")
        page.evaluate(WATCH)
        page.evaluate(RUN, 3)
        page.wait_for_function("() => window.seen.painted", timeout=120_000)
        seen = {k: at / 1000 for k, at in page.evaluate("() => window.seen").items()}
        page.evaluate(RUN, 4)
        text = page.locator(".jp-OutputArea-output pre").last.inner_text()
        ended, stamps, nbytes = json.loads(text)
        for stage, at in (stamps | seen).items():
            runs[stage].append((at - ended) * 1000)
    return {stage: median(found[1:]) for stage, found in runs.items()}, nbytes


def main() -> None:
    """Measure and print; the first run of each cell is left out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(NAMES), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    print(f"| cell | payload | saved HTML | {' | '.join(STAGES.values())} |")
    print(f"|---|--:|--:|{'--:|' * len(STAGES)}")
    with (
        TemporaryDirectory() as folder,
        run_lab(Path(folder)) as url,
        open_chromium() as browser,
    ):
        for name in arguments.names:
            with open_page(browser) as page:
                found = measure(page, url, Path(folder), name, arguments.rounds)
            ends, nbytes = found
            sizes = (nbytes["pack"], nbytes["render_snapshot"])
            cells = [name, *(f"{n / 1000:.1f} KB" for n in sizes)]
            cells += [f"{ends[stage]:.0f}" for stage in STAGES]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
