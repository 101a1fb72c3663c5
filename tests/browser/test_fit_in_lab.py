"""A real kernel records a cell again, for the Memory view of its report."""

import re

from tests.browser.lab import RUN
from tests.browser.test_fit import DEVICE, find_row, show_memory

WAIT = 60_000
LOAD = "%load_ext meta_magic\nimport torch\nfrom torch import nn"
TRAIN = """%%meta
batch = 64
model = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(4)))
model(torch.ones(batch, 4096)).sum().backward()"""


def test_a_kernel_works_it_out(show_cells, expect):
    ask = "print(_meta.fit('t4', {'batch': ...}).largest['batch'])"
    page = show_cells(LOAD, TRAIN, ask)
    for i in range(3):
        page.evaluate(RUN, i)
    output = page.locator(".jp-CodeCell").nth(2).locator(".jp-OutputArea")
    expect(output).to_have_text(re.compile(r"\d+"), timeout=WAIT)
    largest = int(output.text_content())
    memory = show_memory(page)
    memory.get_by_role("button", name=DEVICE, exact=True).click()
    memory.get_by_role("button", name="Work out").click()
    row = find_row(memory, DEVICE)
    expect(row).to_contain_text(f"{largest:,}", timeout=WAIT)
    peak = memory.get_by_role("button", name="peak")
    recorded = peak.text_content()
    memory.get_by_role("slider", name="batch").fill("100000")
    expect(peak).not_to_have_text(recorded)
    assert (page.errors, page.logged) == ([], [])


def test_a_cell_that_cannot_be_run_again_says_why(show_cells, expect):
    cell = "%%meta\nbatch = 4\nx = torch.ones(batch, 8) + 1\nx + 2\nx + 3"
    page = show_cells(LOAD, f"{cell}\nopen('out', 'w').close()")
    page.evaluate(RUN, 0)
    page.evaluate(RUN, 1)
    memory = show_memory(page)
    memory.get_by_role("button", name="Work out").click()
    status = memory.locator("p[role=status]")
    expect(status).to_have_text(
        re.compile("^not worked out: .*it writes the file 'out'"), timeout=WAIT
    )
    assert (page.errors, page.logged) == ([], [])
