"""Takes the README's pictures: ``python -m tests.browser.screenshot``."""

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.browser.lab import RUN, open_chromium, open_in_lab, run_lab, write_notebook

PICTURES = Path(__file__).parents[2] / ".github"

LOAD = """%load_ext meta_magic
import torch
from transformers import LlamaConfig, LlamaForCausalLM"""

LLAMA_70B = """%%meta --depth 3
config = LlamaConfig(
    hidden_size=8192, intermediate_size=28672, num_hidden_layers=80,
    num_attention_heads=64, num_key_value_heads=8, vocab_size=128256)
model = LlamaForCausalLM(config)
logits = model(torch.zeros(1, 4096, dtype=torch.long)).logits"""

VARIED = """%%meta -p layers=40..120:20 -p heads=[8,16,32,64]
layers, heads = 80, 8
model = LlamaForCausalLM(LlamaConfig(
    hidden_size=8192, intermediate_size=28672, num_hidden_layers=layers,
    num_attention_heads=64, num_key_value_heads=heads, vocab_size=128256))
logits = model(torch.zeros(1, 4096, dtype=torch.long)).logits"""

SHARDED = """%%meta --as cuda --world 16 --per-node 8 --height 400
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
mesh = dist.init_device_mesh("cuda", (2, 8), mesh_dim_names=("copies", "shards"))
with torch.device("cuda"):
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=8, use_cache=False))
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
ids = torch.zeros(1, 2048, dtype=torch.long, device="cuda")
model(ids, labels=ids).loss.backward()"""

LESSON = """%%meta --teach
a, b = torch.randn(3), torch.randn(4)
x = a[:, None] + b
turned = x.permute(1, 0)"""

LIVE = ".mm-live:not(.mm-root)"
WARM_UP = "%%meta\nmodel = torch.nn.Linear(2, 2).reset_parameters()"


def take_report(page: Any, url: str, root: Path) -> None:
    """Run the cell in JupyterLab, and write a picture of it with its modules."""
    live = run_llama(page, url, root, LLAMA_70B)
    find_row(live, "0-79").locator("i").click()
    find_row(live, "0").locator("i").click()
    find_row(live, "self_attn").get_by_text("LlamaAttention").click()
    cell = page.locator(".jp-CodeCell").nth(2)
    cell.get_by_text("what would").wait_for()  # fit, says the panel after a moment
    cell.screenshot(path=PICTURES / "report.png")


def take_slider(page: Any, url: str, root: Path) -> None:
    """Move a slider of the cell, and write a picture of what changes in its flow."""
    live = run_llama(page, url, root, VARIED)
    live.get_by_role("tab", name="Flow").click()
    flow = live.get_by_role("tabpanel", name="Flow")
    flow.get_by_text("LlamaDecoderLayer").first.wait_for()
    sliders = page.locator(".mm-sliders").last
    sliders.get_by_role("slider", name="heads").fill("3")
    sliders.get_by_role("status").get_by_text("8 -> 64").wait_for()
    page.locator(".jp-CodeCell").nth(2).screenshot(path=PICTURES / "slider.png")


def run_llama(page: Any, url: str, root: Path, cell: str) -> Any:
    """Run a cell in a new notebook; return its report."""
    write_notebook(root / "llama.ipynb", LOAD, WARM_UP, cell)
    open_in_lab(page, url, "llama.ipynb")
    page.evaluate("() => jupyterapp.commands.execute('application:toggle-left-area')")
    for number in range(3):
        page.evaluate(RUN, number)
    page.add_style_tag(content=".Toastify { display: none }")  # JupyterLab's news
    return page.locator(LIVE).last


def take_world(page: Any, url: str, root: Path) -> None:
    """Run the cell as one process of sixteen, and write a picture of its World view."""
    write_notebook(root / "world.ipynb", LOAD, WARM_UP, SHARDED)
    open_in_lab(page, url, "world.ipynb")
    page.evaluate("() => jupyterapp.commands.execute('application:toggle-left-area')")
    for cell in range(3):
        page.evaluate(RUN, cell)
    live = page.locator(LIVE).last
    live.get_by_role("tab", name="World").click()
    world = live.get_by_role("tabpanel", name="World")
    box = world.get_by_role("slider", name="Collective").bounding_box()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 9)
    world.screenshot(path=PICTURES / "world.png")


def take_lesson(page: Any, url: str, root: Path) -> None:
    """Answer the first question of a lesson wrongly, and write a picture."""
    write_notebook(root / "lesson.ipynb", LOAD, LESSON)
    open_in_lab(page, url, "lesson.ipynb")
    page.evaluate("() => jupyterapp.commands.execute('application:toggle-left-area')")
    for cell in range(2):
        page.evaluate(RUN, cell)
    step = page.locator(".mm-step").first
    step.get_by_role("textbox").fill("4, 3")
    step.get_by_role("textbox").press("Enter")
    step.get_by_role("gridcell", name="[1, 2]").hover()
    page.locator(".jp-CodeCell").nth(1).screenshot(path=PICTURES / "lesson.png")


def find_row(live: Any, name: str) -> Any:
    """Return the row of a module, by its name and the beginning of its class."""
    begins = re.compile(rf"^\W*{name}\W*(80 x )?Llama")
    return live.get_by_role("row").filter(has_text=begins)


def main() -> None:
    """Take the pictures."""
    with (
        TemporaryDirectory() as folder,
        run_lab(Path(folder)) as url,
        open_chromium() as browser,
    ):
        page = browser.new_page(viewport={"width": 1100, "height": 1400})
        take_report(page, url, Path(folder))
        take_slider(page, url, Path(folder))
        take_world(page, url, Path(folder))
        page.set_viewport_size({"width": 900, "height": 1400})
        take_lesson(page, url, Path(folder))


if __name__ == "__main__":
    main()
