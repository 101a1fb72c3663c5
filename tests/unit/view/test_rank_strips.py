"""``Ranks.show()``: a strip for each recorded process, and what hangs in words."""

import re

import torch
import torch.distributed as dist

from meta_magic import record
from meta_magic.ranks.recorded_ranks import Ranks
from meta_magic.view.rank_strips import render_ranks


def record_rank(rank):
    with record(world=16, rank=rank, per_node=8) as trace:
        dist.init_process_group("gloo")
        node = [dist.new_group([*range(n, n + 8)]) for n in (0, 8)][rank // 8]
        dist.all_reduce(torch.ones(256))
        if rank == 0:
            dist.all_reduce(torch.ones(2))
        dist.broadcast(torch.ones(4), 0, group=node)
        dist.broadcast(torch.ones(4), 0)
    return trace


def test_each_process_has_a_strip_and_each_collective_a_tick():
    html = render_ranks(Ranks({rank: record_rank(rank) for rank in (0, 1)}))
    assert html.count("<svg") == html.count("<polygon") == 2
    assert html.count("<path") == 4 + 3
    heights = re.findall(r"class='mm-sent-(\w+)' d='M[\d.]+ \d+v(\d+)'", html)
    # The group of a node stays on its machine: its tick is short.
    assert heights[-3:] == [
        ("all_reduce", "16"),
        ("broadcast", "8"),
        ("broadcast", "16"),
    ]
    assert "all_reduce · 1.0 KiB float32 · sum · ranks 0-15 · other · line" in html


def test_what_hangs_stands_below_in_words():
    ranks = Ranks({rank: record_rank(rank) for rank in (0, 1)})
    (mismatch,) = ranks.mismatches
    assert f"<li>{mismatch}</li>" in render_ranks(ranks)
    assert "this hangs" in str(mismatch)


def test_the_strips_have_one_scale():
    with record(world=2) as large:
        kept = torch.ones(1024)
    with record(world=2, rank=1) as small:
        half = torch.ones(512)
    assert kept.is_meta
    assert half.is_meta
    html = render_ranks(Ranks({0: large, 1: small}))
    areas = re.findall(r"points='([^']*)'", html)
    tops = [min(float(p.split(",")[1]) for p in area.split()) for area in areas]
    assert tops == [2, 29]  # of 56 pixels, less two: half of it


def test_an_error_stands_in_its_strip():
    try:
        with record(world=2) as failed:
            torch.ones(2, 3) @ torch.ones(2, 3)
    except RuntimeError:
        pass
    assert failed.error
    html = render_ranks(Ranks({0: failed}))
    assert failed.error.split("<")[0][:20] in html
