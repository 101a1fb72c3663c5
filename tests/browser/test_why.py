"""The explanation of a failed cell in its report: sizes, chains, repairs."""

import re
from dataclasses import replace

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from torch import nn

from meta_magic import record
from tests.browser.gallery import make_page, open_page, open_shell, set_scheme
from tests.browser.served import list_unreadable

CELL = """%%meta -q -o trace
class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(1, width, 3)
        self.fc = nn.Linear(400, 10)

    def forward(self, x):
        x = self.conv(x).flatten(1)
        return self.fc(x)

model = Net(8)
out = model(torch.randn(4, 1, 12, 12))"""
SIZE = "800, dimension 1 of x"  # 8 * 10 * 10


@pytest.fixture(scope="module")
def failed():
    with open_shell() as shell:
        shell.run_cell("import torch\nfrom torch import nn")
        shell.run_cell(CELL)
        return shell.user_ns["trace"]


@pytest.fixture
def why(serve, failed):
    """The explanation in an open report; the page is ``why.page``."""
    return serve(failed).get_by_role("group", name="Explanation")


def change(trace, **changes):
    """Return a trace whose explanation is another one."""
    changed = replace(trace)
    changed.__dict__["explanation"] = replace(trace.explanation, **changes)
    return changed


def answer(page, **content):
    """Have the kernel answer the newest question."""
    page.evaluate(
        """(content) => {
          const { kind, id } = sent.at(-1);
          listeners["msg:custom"]({ kind, id, ...content });
        }""",
        content,
    )


def test_it_says_where_on_what_and_which_rule(why, expect):
    expect(why).to_contain_text("line 13: model(torch.randn(4, 1, 12, 12))")
    expect(why).to_contain_text("line 10: self.fc(x) in Linear `model.fc`")
    row = why.get_by_role("row").first
    expect(row.get_by_role("rowheader")).to_have_text("x")
    expect(row).to_contain_text("(4, 800)")
    expect(row).to_contain_text("float32")
    expect(why).to_contain_text(
        "dimension 1 of x (800) must equal dimension 1 of self.fc.weight (400)"
    )


def test_the_sizes_that_disagree_are_marked(why, expect):
    expect(why.locator(".mm-marked")).to_have_text(["800", "400"])


def test_a_size_that_disagrees_has_its_chain(why, expect):
    chain = why.locator("details").first
    expect(chain.locator("summary")).to_have_text("why 800: dimension 1 of x")
    expect(chain).to_have_attribute("open", "")
    chain.get_by_role("button", name="line 9").first.click()
    source = why.page.get_by_role("tabpanel", name="Source")
    line = source.locator(".mm-source-line.mm-selected")
    expect(line).to_contain_text("x = self.conv(x).flatten(1)")
    assert why.page.evaluate("sent.filter(({ kind }) => kind === 'why')") == []


def test_a_click_on_a_size_leads_to_its_chain_and_escape_back(why, expect):
    size = why.get_by_role("button", name=SIZE)
    chain = why.locator("details").first
    chain.locator("summary").click()
    expect(chain).not_to_have_attribute("open", "")
    size.press("Enter")
    expect(chain).to_have_attribute("open", "")
    expect(chain.locator("summary")).to_be_focused()
    why.page.keyboard.press("Escape")
    expect(chain).not_to_have_attribute("open", "")
    expect(size).to_be_focused()


def test_a_size_without_a_chain_is_asked_of_the_kernel(why, failed, expect):
    why.get_by_role("button", name="4, dimension 0 of x").click()
    chain = why.locator("details", has_text="why 4: dimension 0 of x")
    expect(chain).to_contain_text("asking the kernel")
    asked = why.page.evaluate("sent.at(-1)")
    call = failed.ops[asked["op"]]
    tensor = (*call.inputs, *call.outputs)[asked["slot"]]
    assert (asked["kind"], asked["dim"], tensor.shape) == ("why", 0, (4, 800))
    first = {"depth": 0, "value": 4, "text": "the batch", "line": 13}
    step = {"depth": 1, "value": 4, "text": "written", "line": 0}
    answer(why.page, name="", caveat="and no more is known", steps=[first, step])
    expect(chain.locator("li")).to_have_text(["4 = the batch line 13", "4 = written "])
    left, right = (li.bounding_box()["x"] for li in chain.locator("li").all())
    assert left < right
    expect(chain).to_contain_text("and no more is known")


def test_what_the_kernel_cannot_answer_is_said(why, expect):
    why.get_by_role("button", name="4, dimension 0 of x").click()
    answer(why.page, error="the cell writes a file")
    expect(why).to_contain_text("the cell writes a file")


def test_a_repair_is_shown_as_a_diff_and_copied(why, failed, expect):
    repair = failed.explanation.repairs[0]
    shown = why.locator("li", has=why.page.locator("pre")).first
    expect(shown).to_contain_text(repair.consequence)
    expect(shown.locator(".mm-less")).to_have_text(f"- {repair.before.strip()}\n")
    expect(shown.locator(".mm-more")).to_have_text(f"+ {repair.after.strip()}\n")
    shown.get_by_role("button", name="Copy").click()
    expect(shown.get_by_role("status")).to_have_text("copied: paste it into a new cell")
    why.page.evaluate("document.body.append(document.createElement('textarea'))")
    why.page.locator("textarea").press("Control+v")
    copied = why.page.locator("textarea").input_value()
    assert copied == f"%%meta -q -o trace\n{repair.source}"
    expect(why.get_by_role("button", name="New cell below")).to_have_count(0)


def test_that_no_edit_ran_is_said(serve, failed, expect):
    page = serve(change(failed, repairs=(), n_tried=7))
    why = page.get_by_role("group", name="Explanation")
    expect(why).to_contain_text("none of 7 edits that were tried ran")


def test_a_block_that_did_not_fail_has_no_explanation(serve, expect):
    with record() as trace:
        nn.Linear(2, 2)(torch.ones(1, 2))
    page = serve(trace)
    expect(page.get_by_role("group", name="Explanation")).to_have_count(0)


def test_a_size_in_the_table_of_operators_leads_to_its_chain(serve, failed, expect):
    page = serve(failed)
    page.get_by_role("tab", name="Operators").click()
    last = page.get_by_role("row").last
    last.locator(".mm-dim", has_text="800").click()
    details = page.get_by_role("group", name="Details")
    expect(details).to_contain_text(re.compile("why 800, dimension 1", re.IGNORECASE))
    chain = failed.explanation.lineages[0]
    steps = details.locator(".mm-chain > li")
    expect(steps).to_have_count(len([*chain.walk()]))
    expect(steps.first).to_contain_text(f"800 = {chain.steps[0].text}")
    details.get_by_role("term").filter(has_text="shape").locator("+ dd").get_by_role(
        "button", name="4"
    ).click()
    assert page.evaluate("sent.at(-1).dim") == 0
    first = {"depth": 0, "value": 4, "text": "b", "line": 0}
    answer(page, name="", caveat="", steps=[first])
    expect(details.locator(".mm-chain > li")).to_have_text("4 = b ")


def test_a_saved_report_has_the_chains_that_were_saved(page, failed, tmp_path, expect):
    path = tmp_path / "report.html"
    failed.to_html(path)
    page.goto(path.as_uri())
    why = page.get_by_role("group", name="Explanation")
    expect(why.locator("details")).to_have_count(len(failed.explanation.lineages))
    expect(why.locator("details").first).to_contain_text("800 = 8 * 10 * 10")
    why.get_by_role("button", name="4, dimension 0 of x").click()
    call = r"trace\.why\((trace\.ops\[\d+\]\.(?:in|out)puts\[\d+\]), 0\)"
    expect(why.locator("details code")).to_have_text(re.compile(call))
    tensor = re.search(call, why.locator("details code").text_content())[1]
    assert eval(tensor, {"trace": failed}).shape == (4, 800)
    expect(why.get_by_role("button", name="Copy").first).to_be_visible()
    assert page.errors == []


def test_a_long_chain_leaves_the_repairs_in_sight(serve, failed, expect):
    chain = failed.explanation.lineages[0]
    steps = tuple(replace(chain.steps[0], parts=(i + 1,)) for i in range(99))
    long = replace(chain, steps=(*steps, replace(chain.steps[0], parts=())))
    why = serve(change(failed, lineages=(long,))).get_by_role(
        "group", name="Explanation"
    )
    expect(why.locator(".mm-chain > li")).to_have_count(100)
    assert why.bounding_box()["height"] < 600


@pytest.mark.parametrize("width", [480, 1100])
def test_a_person_can_read_it(browser, failed, width):
    page = open_page(browser, make_page(failed), width, "light")
    page.get_by_role("button", name="4, dimension 0 of x").click()
    page.keyboard.press("Tab")
    found = list_unreadable(page)
    for scheme in ("dark", "file-light", "file-dark"):
        set_scheme(page, scheme)
        found += list_unreadable(page, "check_colors")
    assert Axe().run(page).violations_count == 0
    page.close()
    assert found == []
