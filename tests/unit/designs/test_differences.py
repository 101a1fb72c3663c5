"""Edits of small models: what was done is what ``mm.diff`` tells."""

import pytest
import torch
from torch import nn

from meta_magic import diff, record
from meta_magic.designs.design import read_settings
from meta_magic.designs.differences import fold_names


def mlp(width=16, depth=2, activation=nn.ReLU, insert=None):
    layers = [nn.Linear(8, width)]
    for _ in range(depth - 1):
        layers += [activation(), nn.Linear(width, width)]
    if insert is not None:
        layers[insert:insert] = [nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Linear(width, 4))


class Attention(nn.Module):
    def __init__(self, d, heads=2, names=("q", "k", "v")):
        super().__init__()
        self.heads = heads
        for name in names:
            setattr(self, name, nn.Linear(d, d))
        self.out = nn.Linear(d, d)


class Block(nn.Module):
    def __init__(self, d, norm=nn.LayerNorm, hidden=4, is_gated=False, **more):
        super().__init__()
        self.norm = norm(d)
        self.attention = Attention(d, **more)
        self.mlp = nn.Sequential(
            nn.Linear(d, hidden * d), nn.GELU(), nn.Linear(hidden * d, d)
        )
        if is_gated:
            self.gate = nn.Linear(d, hidden * d)


class Transformer(nn.Module):
    def __init__(self, d=16, depth=3, is_tied=False, vocab=50, head="head", **more):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(Block(d, **more) for _ in range(depth))
        setattr(self, head, nn.Linear(d, vocab, bias=False))
        if is_tied:
            getattr(self, head).weight = self.embed.weight


class Convolutions(nn.Module):
    def __init__(self, width=8, norm=nn.BatchNorm2d, is_pooled=True, kernel=3):
        super().__init__()
        pool = [nn.MaxPool2d(2)] if is_pooled else []
        self.stem = nn.Conv2d(3, width, kernel, padding=1)
        self.body = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3), norm(2 * width), nn.ReLU(), *pool
        )
        self.head = nn.Linear(2 * width, 10)


class Recurrent(nn.Module):
    def __init__(self, hidden=12, layers=1, kind=nn.LSTM, name="rnn"):
        super().__init__()
        setattr(self, name, kind(8, hidden, layers, batch_first=True))
        self.head = nn.Linear(hidden, 2)


class Halves(nn.Module):
    """Two parts, between which a layer can move."""

    def __init__(self, left, right):
        super().__init__()
        self.left = nn.ModuleDict(left)
        self.right = nn.ModuleDict(right)


def halves(*, is_moved=False, is_wrapped=False):
    moved = nn.Linear(5, 7)
    moved = nn.Sequential(moved) if is_wrapped else moved
    left = {"a": nn.Linear(3, 3)}
    (left if not is_moved else {})["m"] = moved
    right = {"b": nn.Linear(4, 4), **({"m": moved} if is_moved else {})}
    return Halves(left, right)


def list_changes(before, after):
    with record() as first:
        model = before()
    with record() as second:
        model = after()
    del model
    return [(one.kind, one.name, one.text) for one in diff(first, second).changes]


WIDE = "in_features 16 -> 24, out_features 16 -> 24"
CASES = [
    # Widths
    (mlp, lambda: mlp(24), [
        ("settings", "model.0", "out_features 16 -> 24"),
        ("settings", "model.2", WIDE),
        ("settings", "model.3", "in_features 16 -> 24"),
    ]),
    (Transformer, lambda: Transformer(hidden=2), [
        ("settings", "model.blocks.0-2.mlp.0", "out_features 64 -> 32"),
        ("settings", "model.blocks.0-2.mlp.2", "in_features 64 -> 32"),
    ]),
    (Transformer, lambda: Transformer(vocab=60), [
        ("settings", "model.embed", "50 -> 60"),
        ("settings", "model.head", "out_features 50 -> 60"),
    ]),
    (Convolutions, lambda: Convolutions(kernel=5), [
        ("settings", "model.stem", "kernel_size (3, 3) -> (5, 5)"),
    ]),
    (Recurrent, lambda: Recurrent(20), [
        ("settings", "model.rnn", "12 -> 20"),
        ("settings", "model.head", "in_features 12 -> 20"),
    ]),
    # Depths
    (mlp, lambda: mlp(depth=3), [
        ("added", "model.3", ""),
        ("added", "model.4", "in_features=16, out_features=16, bias=True"),
    ]),
    (Transformer, lambda: Transformer(depth=5), [("added", "model.blocks.3-4", "")]),
    (lambda: Transformer(depth=5), Transformer, [("removed", "model.blocks.3-4", "")]),
    (Recurrent, lambda: Recurrent(layers=2), [
        ("settings", "model.rnn", "num_layers=2 is new"),
    ]),
    # Insertions
    *((mlp, lambda at=at: mlp(insert=at), [
        ("added", f"model.{at}", "p=0.1, inplace=False"),
    ]) for at in range(4)),
    (lambda: mlp(depth=4), lambda: mlp(depth=4, insert=3), [
        ("added", "model.3", "p=0.1, inplace=False"),
    ]),
    (Transformer, lambda: Transformer(is_gated=True), [
        ("added", "model.blocks.0-2.gate",
         "in_features=16, out_features=64, bias=True"),
    ]),
    # Deletions
    *((lambda at=at: mlp(insert=at), mlp, [
        ("removed", f"model.{at}", "p=0.1, inplace=False"),
    ]) for at in range(4)),
    (Convolutions, lambda: Convolutions(is_pooled=False), [
        ("removed", "model.body.3",
         "kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False"),
    ]),
    (Transformer, lambda: Transformer(names=("q", "k")), [
        ("removed", "model.blocks.0-2.attention.v",
         "in_features=16, out_features=16, bias=True"),
    ]),
    (Transformer, lambda: Transformer(names=("q", "v")), [
        ("removed", "model.blocks.0-2.attention.k",
         "in_features=16, out_features=16, bias=True"),
    ]),
    # Renames
    (Transformer, lambda: Transformer(head="lm_head"), [
        ("renamed", "model.lm_head", "from head"),
    ]),
    (Transformer, lambda: Transformer(names=("q", "k", "value")), [
        ("renamed", "model.blocks.0-2.attention.value", "from v"),
    ]),
    (Recurrent, lambda: Recurrent(name="lstm"), [
        ("renamed", "model.lstm", "from rnn"),
    ]),
    (Transformer, lambda: Transformer(head="lm_head", vocab=60), [
        ("settings", "model.embed", "50 -> 60"),
        ("renamed", "model.lm_head", "from head"),
        ("settings", "model.lm_head", "out_features 50 -> 60"),
    ]),
    # Other classes
    (mlp, lambda: mlp(activation=nn.GELU), [("class", "model.1", "from ReLU")]),
    (lambda: mlp(depth=4), lambda: mlp(depth=4, activation=nn.SiLU), [
        ("class", "model.1,3,5", "from ReLU"),
    ]),
    (Transformer, lambda: Transformer(norm=nn.RMSNorm), [
        ("class", "model.blocks.0-2.norm", "from LayerNorm"),
    ]),
    (Convolutions, lambda: Convolutions(norm=nn.InstanceNorm2d), [
        ("class", "model.body.1", "from BatchNorm2d"),
    ]),
    (Recurrent, lambda: Recurrent(kind=nn.GRU), [("class", "model.rnn", "from LSTM")]),
    (mlp, lambda: mlp(activation=nn.GELU, insert=2), [
        ("class", "model.1", "from ReLU"),
        ("added", "model.2", "p=0.1, inplace=False"),
    ]),
    # Ties
    (Transformer, lambda: Transformer(is_tied=True), [
        ("tied", "model.head", "weight is tied"),
    ]),
    (lambda: Transformer(is_tied=True), Transformer, [
        ("tied", "model.head", "weight is no longer tied"),
    ]),
    # Moves
    (halves, lambda: halves(is_moved=True), [
        ("moved", "model.right.m", "from model.left.m"),
    ]),
    (lambda: halves(is_moved=True), halves, [
        ("moved", "model.left.m", "from model.right.m"),
    ]),
    (halves, lambda: halves(is_moved=True, is_wrapped=True), [
        ("added", "model.right.m", ""),
        ("moved", "model.right.m.0", "from model.left.m"),
    ]),
    # Nothing
    *((one, one, []) for one in (mlp, Transformer, Convolutions, Recurrent, halves)),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "expected"), CASES)
def test_what_was_done_is_what_is_told(before, after, expected):
    assert list_changes(before, after) == expected


def train(n_layers, width):
    with record() as trace:
        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(n_layers)))
        model(torch.ones(4, width)).sum().backward()
    return trace


def test_what_moved_is_counted_neither_as_removed_nor_as_added():
    with record() as first:
        model = halves()
    with record() as second:
        model = halves(is_moved=True, is_wrapped=True)
    for before, after in ((first, second), (second, first)):
        changes = diff(before, after).changes
        kinds = {one.kind: one.n_parameters for one in changes}
        assert kinds in ({"added": 0, "moved": 0}, {"removed": 0, "moved": 0})
    del model


def test_totals_are_those_of_the_recordings():
    small, large = train(2, 8), train(3, 16)
    found = diff(small, large)
    assert found.totals["params"] == (2 * 8 * 9, 3 * 16 * 17)
    assert found.totals["flops"] == (small.flops, large.flops)
    peaks = small.memory.peak_nbytes, large.memory.peak_nbytes
    assert found.totals["peak_nbytes"] == peaks
    widths = "in_features 8 -> 16, out_features 8 -> 16"
    assert found.text.startswith(
        f"3 Linear instead of 2; model.0-1: {widths}; +672 parameters; "
    )
    assert not diff(small, small)


def test_written_numbers_are_named():
    with record() as first:
        width, depth = 8, 2
        nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))
    with record() as second:
        width, depth = 16, 2
        nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))
    assert diff(first, second).numbers == {"width": (8, 16)}


def test_unrelated_designs_are_removed_and_added():
    kinds = {name: kind for kind, name, _ in list_changes(Convolutions, Recurrent)}
    assert kinds["model.rnn"] == "added"
    assert kinds["model.stem"] == kinds["model.body"] == "removed"


def test_modules_without_a_name_are_told_by_their_class():
    with record() as old:
        nn.Linear(2, 2)(torch.ones(2))
    with record() as new:
        nn.Conv1d(2, 2, 1)(torch.ones(2, 3))
    difference = diff(old, new)
    assert difference.text.startswith("Conv1d instead of Linear; ")
    assert str(difference.changes[0]) == "~ Conv1d  from Linear"


def test_many_numbers_of_a_name_are_shortened():
    names = [f"model.{2 * at}" for at in range(5000)]
    assert fold_names(names) == "model.0,2,4,6,8,10,…,9998"


def test_settings_with_nested_brackets_are_read():
    text = "8, padding=((1, 2), (3, 4)), k=3, s="
    expected = {"0": "8", "padding": "((1, 2), (3, 4))", "k": "3", "s": ""}
    assert read_settings(text) == expected


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(TypeError, match="two traces, or a module and a checkpoint"):
        diff(nn.Linear(2, 2), 3)


@pytest.fixture
def model():
    with torch.device("meta"):
        return nn.ModuleDict({"encoder": mlp(), "head": nn.Linear(4, 2, bias=False)})


def test_a_prefix_of_a_checkpoint_is_found(model):
    state = {f"module.{name}": x for name, x in model.state_dict().items()}
    found = diff(model, state)
    assert (found.prefix, found.missing, found.unexpected) == ("module.", (), ())
    assert len(found.fitting) == len(state)
    found = diff(model, model["encoder"].state_dict())
    assert found.missing_prefix == "encoder."
    assert found.missing == ("head.weight",)


def test_other_shapes_of_a_checkpoint_are_told(model, tmp_path):
    state = {name: torch.ones(x.shape) for name, x in model.state_dict().items()}
    state["head.weight"] = torch.ones(4, 2)
    state["encoder.0.bias"] = torch.ones(3)
    del state["encoder.3.bias"]
    state["more"] = torch.ones(1)
    torch.save(state, tmp_path / "state.pt")
    found = diff(model, tmp_path / "state.pt")
    assert dict(found.transposed) == {"head.weight": ((2, 4), (4, 2))}
    assert dict(found.reshaped) == {"encoder.0.bias": ((16,), (3,))}
    assert found.missing == ("encoder.3.bias",)
    assert found.unexpected == ("more",)
    assert "~ head.weight: fits transposed: (2, 4), in the checkpoint (4, 2)" in str(
        found
    )


def test_a_sentence_tells_sizes_and_what_else_changed():
    def build(width, activation, *, is_tied):
        model = nn.Sequential(
            nn.Embedding(9, width),
            nn.Linear(width, width),
            activation(),
            nn.Linear(width, 9, bias=False),
        )
        if is_tied:
            model[3].weight = model[0].weight
        return model

    with record() as before:
        width = 4
        model = build(width, nn.ReLU, is_tied=False)
    with record() as after:
        width = 8
        model = build(width, nn.GELU, is_tied=True)
    assert model[3].weight.is_meta
    text = diff(before, after).text
    assert "width 4 -> 8" in text
    assert "in_features" not in text  # follows from the width
    assert "model.2 GELU instead of ReLU" in text
    assert "model.3: weight is tied" in text


def test_classes_that_are_renamed_as_their_root_leave_room_for_sizes():
    def make(prefix, width):
        def build(self):
            nn.Module.__init__(self)
            self.layer = type(f"{prefix}Layer", (nn.Sequential,), {})(nn.ReLU())
            self.head = nn.Linear(8, width)

        kind = type(f"{prefix}Model", (nn.Module,), {"__init__": build})
        with record() as trace:
            model = kind()
            model.layer(model.head(torch.ones(1, 8)))
        return trace

    text = diff(make("Bert", 4), make("Roberta", 6)).text
    changes = "RobertaModel instead of BertModel; model.head: out_features 4 -> 6"
    assert text.removeprefix("model ").startswith(changes)
    assert text.count("instead of") == 1
    assert "; 1 class inside renamed alike; " in text


def test_a_container_of_another_name_and_class_is_compared_inside():
    class One(nn.Module):
        def __init__(self, name, kind, width):
            super().__init__()
            inner = kind(*(nn.Linear(4, 4) for _ in range(3)), nn.Linear(4, width))
            setattr(self, name, inner)

    class Stack(nn.Sequential):
        pass

    with record() as before:
        model = One("vit", nn.Sequential, 5)
    with record() as after:
        model = One("deit", Stack, 6)
    assert next(model.parameters()).is_meta
    found = {
        (change.kind, change.after): change.text
        for change in diff(before, after).changes
    }
    assert found == {
        ("renamed", "model.deit"): "from vit",
        ("class", "model.deit"): "from Sequential",
        ("settings", "model.deit.3"): "out_features 5 -> 6",
    }


def test_a_sibling_that_keeps_its_name_is_not_taken_for_another():
    def build(*widths):
        return nn.ModuleDict({name: nn.Embedding(n, 4) for name, n in widths})

    with record() as before:
        model = build(("words", 9), ("types", 2), ("positions", 8))
    with record() as after:
        model = build(("words", 9), ("positions", 16))
    assert model["words"].weight.is_meta
    found = {
        (change.kind, change.name): change.text
        for change in diff(before, after).changes
    }
    assert found == {
        ("removed", "model.types"): "2, 4",
        ("settings", "model.positions"): "8 -> 16",
    }


def test_what_a_block_keeps_is_found_in_the_same_block():
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.Module()
            self.attention.inner = Attention(4)
            self.attention.norm = nn.LayerNorm(4)
            self.output = nn.Module()
            self.output.norm = nn.LayerNorm(4)

    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention(4)
            self.first_norm = nn.LayerNorm(4)
            self.last_norm = nn.LayerNorm(4)

    with record() as before:
        model = nn.ModuleList(Nested() for _ in range(6))
    with record() as after:
        model = nn.ModuleList(Flat() for _ in range(3))
    assert len(model) == 3
    for pair in ((before, after), (after, before)):
        found = diff(*pair)
        moved = {c.after: c.before for c in found.changes if c.kind == "moved"}
        if pair[0] is after:
            moved = {old: new for new, old in moved.items()}
        assert moved["model.0-2.first_norm"] == "model.0-2.attention.norm"
        assert moved["model.0-2.last_norm"] == "model.0-2.output.norm"
    assert diff(before, after).text.startswith("3 Flat instead of 6 Nested; ")


def test_what_was_removed_is_told_with_its_neighbours_in_the_order_of_calls():
    class Net(nn.Module):
        def __init__(self, depth):
            super().__init__()
            self.norm = nn.LayerNorm(4)  # defined first, called last
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(depth))
            self.head = nn.Identity()

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.norm(self.head(x)) if self.norm else self.head(x)

    with record() as before:
        model = Net(5)
        model(torch.ones(4))
    with record() as after:
        model = Net(2)
        model.norm = None
        model(torch.ones(4))
    found = {(r.text, r.above, r.previous, r.next) for r in diff(before, after).removed}
    assert found == {
        ("norm: LayerNorm", "model", "model.head", ""),
        ("layers.2-4: 3 x Linear", "model.layers", "model.layers.1", ""),
    }
