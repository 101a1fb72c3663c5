"""The Materialize panel in the real JupyterLab."""

import re

from meta_magic.view.choices import ALL
from tests.browser.lab import RUN

LOAD = "%load_ext meta_magic\nimport torch\nfrom torch import nn"
BUILD = "torch.manual_seed(0)\nmodel = nn.Sequential(*(nn.Linear(8, 8) for _ in '12'))"
COMPARE = """alias = model
with torch.random.fork_rng():
    torch.manual_seed(0)
    eager = nn.Sequential(*(nn.Linear(8, 8) for _ in '12'))
same = all(torch.equal(a, b) for a, b in zip(model.parameters(), eager.parameters()))
print(model[0].weight.device, alias is watched, same)"""
SLOW = """class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3))
    def reset_parameters(self):
        import time
        while not globals().get('opened'):
            time.sleep(0.01)
        nn.init.ones_(self.weight)
"""


WAIT = 60_000
REAL = "model is now real, on cpu: call model(…) in the next cell"


def run(page, *indices):
    for i in indices:
        page.evaluate(RUN, i)


def output(page, i):
    return page.locator(".jp-CodeCell").nth(i).locator(".jp-OutputArea")


def test_a_click_makes_the_variable_the_real_module(show_cells, expect):
    page = show_cells(LOAD, f"%%meta\n{BUILD}", "watched = model", COMPARE)
    run(page, 0, 1, 2)
    panel = page.get_by_role("group", name="Materialize")
    expect(panel).to_contain_text("model: Sequential", timeout=WAIT)
    expect(panel).to_contain_text(re.compile(r"needs 576 bytes · [\d.,]+ .iB free"))
    panel.get_by_role("button", name="Materialize").click()
    expect(panel.get_by_role("status")).to_have_text(REAL, timeout=WAIT)
    expect(panel.locator(".mm-report")).to_contain_text("4 tensors, 576 bytes")
    expect(panel.get_by_role("button", name="Materialize")).to_be_disabled()
    run(page, 3)
    expect(output(page, 3)).to_have_text("cpu True True")
    assert (page.errors, page.logged) == ([], [])


TRAIN = """torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
x = torch.ones(2, 4)
def step():
    optimizer.zero_grad()
    loss = model(x).square().sum()
    loss.backward()
    optimizer.step()
    return loss
step()"""


def test_a_click_on_a_row_makes_that_block_real_and_all_then_the_rest(
    show_cells, expect
):
    page = show_cells(
        LOAD,
        f"%%meta\n{TRAIN}",
        "print([p.is_meta for p in model.parameters()])",
        f"losses = [step().item(), step().item()]\n{TRAIN}\n"
        "print(losses == [step().item(), step().item()])",
    )
    run(page, 0, 1)
    panel = page.get_by_role("group", name="Materialize")
    expect(panel).to_contain_text("model: Sequential", timeout=WAIT)
    page.get_by_role("row", name="2 Linear").last.click()
    expect(panel.get_by_label("module", exact=True)).to_have_value("model.2")
    button = panel.get_by_role("button", name="Materialize")
    expect(panel).to_contain_text("1 backward pass", timeout=WAIT)
    button.click()
    status = panel.get_by_role("status")
    expect(status).to_contain_text("model[2] is now real", timeout=WAIT)
    expect(panel).to_contain_text("still on meta")
    run(page, 2)
    expect(output(page, 2)).to_have_text("[True, True, False, False]")
    panel.get_by_label("module", exact=True).select_option(ALL)
    expect(button).to_be_enabled(timeout=WAIT)
    button.click()
    expect(status).to_contain_text("what your variables hold is now", timeout=WAIT)
    run(page, 3)
    expect(output(page, 3)).to_have_text("True")
    assert (page.errors, page.logged) == ([], [])


def test_the_notebook_is_alive_while_a_module_is_made_real(show_cells, expect):
    page = show_cells(
        f"{LOAD}\n{SLOW}",
        "%%meta\nmodel = Slow()",
        "opened = True",
        "print(model.weight)",
    )
    run(page, 0, 1)
    panel = page.get_by_role("group", name="Materialize")
    panel.get_by_label("init").select_option("reset")
    panel.get_by_role("button", name="Materialize").click()
    expect(panel.get_by_role("button", name="Cancel")).to_be_focused(timeout=WAIT)
    expect(panel.get_by_role("progressbar")).to_be_visible()
    expect(panel.get_by_label("device")).to_be_disabled()
    run(page, 2)
    status = panel.get_by_role("status")
    expect(status).to_have_text(REAL, timeout=WAIT)
    expect(panel.get_by_role("progressbar")).to_be_hidden()
    run(page, 3)
    expect(output(page, 3)).to_contain_text("tensor([1., 1., 1.]")
    assert (page.errors, page.logged) == ([], [])


def test_a_click_is_answered_while_a_cell_runs(show_cells, expect):
    page = show_cells(
        LOAD,
        f"%%meta\n{BUILD}",
        "import time\nwhile model[0].weight.is_meta: time.sleep(0.01)\nprint('real')",
    )
    run(page, 0, 1)
    panel = page.get_by_role("group", name="Materialize")
    # An answer shows that the front end has its way to the kernel beside its cells.
    panel.get_by_label("dtype").select_option("float16", timeout=WAIT)
    expect(panel).to_contain_text("needs 288 bytes", timeout=WAIT)
    page.evaluate(f"() => {{ ({RUN})(2) }}")
    expect(page.locator(".jp-InputPrompt").nth(2)).to_have_text("[*]:")
    # By no mouse and no key: the notebook scrolls and moves the focus to the next cell.
    panel.get_by_role("button", name="Materialize").dispatch_event("click")
    expect(panel.get_by_role("status")).to_contain_text(
        "is now real, on cpu", timeout=WAIT
    )
    expect(output(page, 2)).to_have_text("real", timeout=WAIT)
    assert (page.errors, page.logged) == ([], [])


def test_keys_in_the_panel_do_not_reach_the_notebook(show_cells, expect):
    page = show_cells(LOAD, f"%%meta\n{BUILD}")
    run(page, 0, 1)
    panel = page.get_by_role("group", name="Materialize")
    for control in ("module", "device", "init", "dtype"):
        panel.get_by_label(control, exact=True).focus(timeout=WAIT)
        page.keyboard.press("d")
        page.keyboard.press("d")
    panel.get_by_role("button", name="Materialize").focus()
    page.keyboard.press("d")
    page.keyboard.press("d")
    expect(page.locator(".jp-CodeCell")).to_have_count(2)
    page.keyboard.press("Enter")
    expect(panel.get_by_role("status")).to_contain_text("is now real", timeout=WAIT)
    assert (page.errors, page.logged) == ([], [])


def test_a_path_is_asked_for_where_a_checkpoint_is_chosen(show_cells, expect):
    save = (
        "torch.manual_seed(7)\nsource = nn.Linear(3, 4)\n"
        "torch.save(source.state_dict(), 'saved.pt')"
    )
    page = show_cells(
        f"{LOAD}\n{save}",
        "%%meta\nmodel = nn.Linear(3, 4)",
        "print(torch.equal(source.weight, model.weight))",
    )
    run(page, 0, 1)
    panel = page.get_by_role("group", name="Materialize")
    path = panel.get_by_label("checkpoint")
    expect(path).to_be_hidden(timeout=WAIT)
    panel.get_by_label("init").select_option("checkpoint")
    status = panel.get_by_role("status")
    expect(status).to_contain_text("type the path of a checkpoint")
    path.fill("nowhere.pt")
    path.press("Enter")
    expect(status).to_contain_text("there is no checkpoint 'nowhere.pt'")
    expect(status).to_have_class(re.compile("mm-danger"))  # it was tried, and is over
    path.fill("saved.pt")
    path.press("Enter")
    expect(status).to_have_text(REAL, timeout=WAIT)
    run(page, 2)
    expect(output(page, 2)).to_have_text("True")
    assert (page.errors, page.logged) == ([], [])


def test_a_restarted_kernel_is_said_to_be_silent(show_cells, expect):
    page = show_cells(LOAD, f"%%meta\n{BUILD}")
    run(page, 0, 1)
    panel = page.get_by_role("group", name="Materialize")
    button = panel.get_by_role("button", name="Materialize")
    expect(button).to_be_enabled(timeout=WAIT)
    page.evaluate(
        "() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
    )
    expect(panel.get_by_role("status")).to_contain_text(
        "no answer from the kernel", timeout=WAIT
    )
    expect(button).to_be_disabled()
