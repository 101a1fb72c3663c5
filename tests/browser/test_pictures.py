"""Pictures of what operators do, in the details panel: mouse, keys, screen reader."""

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe

from meta_magic import record


@pytest.fixture(scope="module")
def trace():
    with record(as_device="cpu") as trace:
        column, vector = torch.ones(3, 1), torch.ones(4)
        sums = column + vector
        turned = torch.ones(3, 4).permute(1, 0)
        scores = torch.ones(2, 3, 4).bmm(torch.ones(2, 4, 5))
        big = torch.ones(100, 200) + torch.ones(200)
        torch.nn.functional.conv1d(torch.ones(1, 1, 8), torch.ones(1, 1, 3), stride=2)
        torch.ones(3).exp()
        torch.ones(0, 4) + torch.ones(4)
    assert turned.shape == (4, 3)
    assert (sums.shape, scores.shape, big.numel()) == ((3, 4), (2, 3, 5), 20_000)
    return trace


@pytest.fixture
def picture(serve, trace):
    """Open the details of an operator; its picture."""
    page = serve(trace)
    page.get_by_role("tab", name="Operators").click()

    def open_operator(op, n=0):
        page.get_by_role("row").filter(has_text=op).nth(n).click()
        return page.locator(".mm-picture")

    return open_operator


def read_marked(picture, name):
    """Return the texts of the marked cells of a tensor."""
    figure = picture.locator("figure").filter(has_text=name)
    return figure.locator(".mm-read").all_inner_texts()


def test_a_broadcast_shows_its_alignment_and_the_elements_that_meet(picture, expect):
    shown = picture("aten.add.Tensor")
    rows = shown.get_by_role("row")
    expect(rows.filter(has_text="column")).to_contain_text("1 → 4")
    expect(rows.filter(has_text="vector").first).to_contain_text("none → 3")
    shown.get_by_role("gridcell", name="[2, 1]").hover()
    expect(shown.get_by_role("status")).to_have_text(
        "result[2, 1] ← column[2, 0], vector[1]"
    )
    assert read_marked(shown, "vector") == ["1"]


def test_an_element_of_an_input_shows_those_that_read_it(picture, expect):
    shown = picture("aten.add.Tensor")
    vector = shown.locator("figure").filter(has_text="vector")
    vector.locator(".mm-element").nth(1).hover()
    expect(shown.get_by_role("status")).to_have_text(
        "vector[1] → 3 of the elements shown of result"
    )
    assert shown.locator("figure .mm-walk").all_inner_texts() == ["0,1", "1,1", "2,1"]


def test_arrow_keys_lead_from_element_to_element(picture, expect):
    shown = picture("aten.permute.default")
    cell = shown.get_by_role("gridcell", name="[0, 0]")
    cell.focus()
    cell.press("ArrowDown")
    shown.page.keyboard.press("ArrowRight")
    expect(shown.get_by_role("gridcell", name="[1, 1]")).to_be_focused()
    # (4, 3) with strides (1, 4): 1 + 4.
    expect(shown.get_by_role("status")).to_have_text(
        "result[1, 1] is at 0 + 1·1 + 1·4 = 5"
    )


def test_a_batch_is_chosen_by_buttons(picture, expect):
    shown = picture("aten.bmm.default")
    expect(shown.locator("s")).to_have_text("k = 4")
    batch = shown.get_by_role("group", name="dimension 0")
    batch.get_by_role("button", name="1").click()
    expect(shown.get_by_role("status")).to_have_text(
        "result[1, 0, 0] ← torch.ones(2, 3, 4)[1, 0, :], mat2[1, :, 0]"
    )


def test_a_large_tensor_is_drawn_as_its_first_and_last_elements(picture, expect):
    shown = picture("aten.add.Tensor", 1)
    expect(shown.get_by_role("gridcell", name="[99, 199]")).to_be_visible()
    expect(shown.get_by_role("gridcell", name="[50, 3]")).to_have_count(0)


def test_a_row_of_a_convolution_shows_what_no_window_reaches(picture, expect):
    # 8 elements, windows of 3 at 0, 2 and 4: the last reaches 6.
    shown = picture("aten.convolution.default")
    expect(shown).to_contain_text("(8 + 2·0 - 3) // 2 + 1 = 3")
    expect(shown.locator(".mm-over")).to_have_text("7")


def test_a_window_after_another_one_is_followed_to_its_input(serve, expect):
    with record(as_device="cpu") as trace:
        row = torch.nn.Conv1d(1, 1, 3, padding=1)(torch.ones(1, 1, 9)).relu()
        torch.nn.Conv1d(1, 1, 2, stride=2)(row)
    page = serve(trace)
    page.get_by_role("tab", name="Operators").click()
    page.get_by_role("row").filter(has_text="aten.convolution.default").nth(1).click()
    shown = page.locator(".mm-picture")
    # It has 2 and 3 of the row; with one more at each side, 1 to 4 were read.
    shown.get_by_role("gridcell", name="[0, 0, 1]").hover()
    first, second = shown.locator(".mm-strip").all()
    assert first.locator(".mm-read").all_inner_texts() == ["2", "3"]
    assert second.locator(".mm-read").all_inner_texts() == ["1", "2", "3", "4"]
    expect(shown).to_contain_text("[0, 0, 1:5]; dimension 2: (9 + 2·1 - 3) // 1 + 1")


def test_an_operator_of_one_tensor_has_no_picture(picture, expect):
    expect(picture("aten.exp.default")).to_have_count(0)


def test_a_tensor_without_elements_is_said(picture, expect):
    expect(picture("aten.add.Tensor", 2)).to_contain_text("no elements")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_picture_can_be_used_by_everyone(picture, scheme):
    shown = picture("aten.bmm.default")
    shown.page.emulate_media(color_scheme=scheme)
    found = Axe().run(shown.page)
    assert found.response["violations"] == [], found.generate_report()
