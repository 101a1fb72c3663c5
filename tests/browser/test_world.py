"""The World view: what the recorded process holds and sends, as a person sees it."""

import re

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from meta_magic import record
from meta_magic.view.scripts import join_scripts
from tests.browser.gallery import SETTLE
from tests.browser.served import list_unreadable, show


@pytest.fixture(scope="module")
def trace():
    with record(world=16, rank=9, per_node=8) as trace:
        dist.init_process_group("gloo")
        node = [dist.new_group([*range(n, n + 8)]) for n in (0, 8)][1]
        model = nn.Linear(64, 32, bias=False)  # 8 KiB
        model(torch.ones(4, 64)).sum().backward()
        dist.all_reduce(model.weight.grad)
        for _ in range(3):
            dist.broadcast(torch.ones(2, 3), 8, group=node)
    assert model.weight.grad.is_meta
    return trace


@pytest.fixture
def world(serve, trace):
    return show(serve(trace), "World")


def test_the_rank_and_its_peak_are_at_the_top(world, trace, expect):
    head = world.locator("figcaption").first
    expect(head).to_have_text(
        re.compile(r"^Rank 9 of 16, on node 1: 17\.\d KiB at the")
    )
    assert trace.memory.peak_nbytes // 1024 == 17  # weight, gradient, and the input
    kinds = world.locator(".mm-groups").first
    expect(kinds).to_contain_text("parameters 8.0 KiB")
    expect(kinds).to_contain_text("gradients 8.0 KiB")


def test_a_tick_is_drawn_for_each_collective_and_longer_between_nodes(world):
    lines = {
        kind: world.locator(f"path.mm-sent-{kind}").get_attribute("d").split("M")[1:]
        for kind in ("all_reduce", "broadcast")
    }
    assert [tick.split("v")[1] for tick in lines["all_reduce"]] == ["14"]
    assert [tick.split("v")[1] for tick in lines["broadcast"]] == ["7"] * 3


def test_a_kind_of_collective_hides_no_other(serve):
    with record(world=16, rank=9, per_node=8) as trace:
        dist.init_process_group("gloo")
        x = torch.ones(16)
        for _ in range(3):
            dist.reduce_scatter_tensor(torch.ones(1), x)
            dist.all_reduce(x)
        for _ in range(4000):  # so that two in a row are within a pixel
            x.add_(1)
    world = show(serve(trace), "World")
    ticks = [
        re.findall(r"[\d.]+", world.locator(f"path.mm-sent-{kind}").get_attribute("d"))
        for kind in ("reduce_scatter", "all_reduce")
    ]
    (x, top, height), (other, below, _) = (map(float, tick[:3]) for tick in ticks)
    assert abs(x - other) < 1
    assert top + height <= below


def test_the_pointer_shows_a_collective_and_a_click_selects_it(
    world, page, trace, expect
):
    ticks = world.get_by_role("slider", name="Collective")
    sent = next(one for one in trace.sent if one.kind == "all_reduce")
    width = ticks.bounding_box()["width"]
    at = {"x": (sent.index + 0.5) * width / len(trace.ops), "y": 6}
    ticks.hover(position=at)
    words = (
        rf"^#{sent.index} all_reduce · 8\.0 KiB float32 · sum · ranks 0-15 · 2 nodes"
    )
    expect(world.locator("output").first).to_have_text(re.compile(words))
    ticks.click(position=at)
    chosen = show(page, "Operators").locator(".mm-selected")
    expect(chosen).to_contain_text("allreduce_")


def test_the_keys_lead_through_the_collectives(world, page, trace, expect):
    ticks = world.get_by_role("slider", name="Collective")
    ticks.press("End")
    expect(ticks).to_have_attribute("aria-valuenow", "3")
    ticks.press("ArrowLeft")
    expect(ticks).to_have_attribute("aria-valuenow", "2")
    ticks.press("Enter")
    chosen = show(page, "Operators").locator(".mm-selected")
    expect(chosen).to_contain_text(str(trace.sent[2].index))


def test_the_tables_add_up_and_lead_to_the_operators(world, page, trace, expect):
    groups = world.get_by_role("table", name="Collectives by group").get_by_role("row")
    expect(groups).to_have_text(
        [
            re.compile("collective"),
            "all_reduceranks 0-15218.0 KiB",
            "broadcastranks 8-151372 bytes",  # three of 24 bytes
        ]
    )
    lines = world.get_by_role("table", name="Collectives by line").get_by_role("row")
    expect(lines).to_have_count(3)
    button = groups.nth(2).get_by_role("button")
    button.click()
    button.click()  # the next one
    chosen = show(page, "Operators").locator(".mm-selected")
    expect(chosen).to_contain_text(str(trace.sent[2].index))


def test_what_is_selected_elsewhere_is_shown(world, page, trace, expect):
    row = show(page, "Operators").get_by_role("row").filter(has_text="broadcast_")
    row.last.click()
    show(page, "World")
    ticks = world.get_by_role("slider", name="Collective")
    expect(ticks).to_have_attribute("aria-valuenow", "3")


@pytest.mark.parametrize("width", [350, 700, 1280])
def test_a_person_can_read_it(world, page, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate(SETTLE)  # the strip is drawn anew
    page.keyboard.press("Tab")
    assert list_unreadable(page) == []


@pytest.mark.parametrize("has_world", [False, True])
def test_a_saved_report_has_the_view_only_with_a_world(
    page, tmp_path, expect, trace, has_world
):
    with record() as alone:
        nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
    path = tmp_path / "report.html"
    (trace if has_world else alone).to_html(path)
    page.goto(path.as_uri())
    expect(page.get_by_role("tab", name="Memory")).to_be_visible()
    expect(page.get_by_role("tab", name="World")).to_have_count(int(has_world))
    assert ("mm-sent-" in join_scripts("world" if has_world else "saved")) == has_world


def test_a_mesh_is_drawn_with_this_rank_in_its_place(serve, expect):
    with record(world=16, rank=9, per_node=8) as trace:
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (4, 4), mesh_dim_names=("dp", "tp"))
        model = nn.Linear(64, 32, bias=False)  # 8 KiB
        placements = [Replicate(), Shard(1)]
        weight = distribute_tensor(model.weight, mesh, placements)
        model.weight = nn.Parameter(weight)
    world = show(serve(trace), "World")
    grid = world.get_by_role("img", name="Mesh dp 4")
    assert grid.locator("span").all_inner_texts() == [*map(str, range(16))]
    own = grid.locator(".mm-mesh-own")
    expect(own).to_have_text("9")
    expect(own).to_have_attribute("title", "rank 9, node 1, dp 2, tp 1")
    row = world.get_by_role("table", name="Mesh dp 4").locator("tbody tr")
    expect(row).to_have_text("Replicate() on dp, Shard(1) on tp12.0 KiB8.0 KiB")
