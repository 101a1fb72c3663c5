"""What the details panel is sent."""

from itertools import accumulate

import torch
from torch import nn

from meta_magic import record
from meta_magic.view.payload import build_payload


def build(make):
    with record() as trace:
        kept = make()
    assert kept is not None
    return trace, build_payload(trace)


def test_alike_modules_share_their_settings_and_class():
    _, payload = build(lambda: nn.Sequential(*(nn.Linear(4, 4) for _ in range(50))))
    details = payload["details"]
    brief = "in_features=4, out_features=4"
    assert details["settings"] == [["", ""], [nn.Linear(4, 4).extra_repr(), brief]]
    assert details["settings_of"] == [0] + [1] * 50
    docs = [row["docs"] for row in details["definitions"]]
    pages = "https://docs.pytorch.org/docs/stable/generated"
    assert docs == [
        f"{pages}/torch.nn.Sequential.html",
        f"{pages}/torch.nn.Linear.html",
    ]


def test_inputs_have_the_names_of_the_schema():
    def run():
        x = torch.ones(2, 2)
        return torch.addmm(x, x, x), torch.cat([x, x])

    _, payload = build(run)
    signatures = payload["signatures"]
    names = dict(zip(signatures["op"], signatures["names"], strict=True))
    assert names["aten.addmm.default"] == ["self", "mat1", "mat2"]
    assert names["aten.cat.default"] == ["tensors[0]", "tensors[1]"]


def test_deaths_tell_after_which_operator_a_storage_was_freed():
    def run():
        x = torch.ones(3)  # 0
        y = x + 1  # 1
        del x
        return y * 2  # 2

    trace, payload = build(run)
    deaths = payload["details"]["deaths"]
    freed = dict(
        zip(accumulate(deaths["storage"]), accumulate(deaths["n_ops"]), strict=True)
    )
    first, second = (trace.ops[i].outputs[0].storage_id for i in (0, 1))
    assert (freed[first], freed[second]) == (2, 3)


def test_parameters_are_listed_with_their_storages():
    trace, payload = build(lambda: nn.Linear(3, 2))
    storages = [*accumulate(payload["details"]["storages"])]
    assert storages == [
        trace.ops[0].outputs[0].storage_id,
        trace.ops[1].outputs[0].storage_id,
    ]
