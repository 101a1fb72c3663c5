"""The rules that are found: of operators, as torch documents them, and of modules."""

import pytest
import torch
from torch import nn

from meta_magic import record
from tests.conformance.recorded_cells import record_cell, split_programs

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
ALONE = """
# %% dimension 1 of x (800) must equal dimension 1 of weight (400)
x, weight = torch.ones(4, 800), torch.ones(10, 400)
F.linear(x, weight)

# %% dimension 1 of a (4) must equal dimension 1 of b (5) or be 1
a, b = torch.ones(3, 4), torch.ones(3, 5)
a + b

# %% indices is float32: indices.long() is accepted
weight, indices = torch.ones(5, 3), torch.ones(4)
F.embedding(indices, weight)

# %% dim (2) must be from -2 to 1
x = torch.ones(2, 3)
torch.softmax(x, dim=2)

# %% dim1 (3) must be from -2 to 1
x = torch.ones(2, 3)
x.transpose(0, 3)

# %% the index has more parts than the tensor has dimensions (1)
x = torch.arange(12)
x[:, ::2]

# %% permute takes each of 3 dimensions once; 2 are given
x = torch.ones(2, 3, 4)
x.permute(0, 2)

# %% w * 2 requires a gradient: (w * 2).detach() is accepted
w = torch.ones(3, requires_grad=True)
(w * 2).numpy()

# %% v requires a gradient: v.detach() is accepted
w = torch.ones(2, requires_grad=True)
v = w * 2
torch.optim.SGD([v], lr=1)

# %% w requires a gradient: w.detach() is accepted
w = torch.ones(3, requires_grad=True)
w.numpy()

# %% x has 2 dimensions, and 3 are unpacked
x = torch.ones(4, 5)
b, t, c = x.shape

# %% rnn(x) returned 2 values: (3, 2, 8); (1, 2, 8) and (1, 2, 8)
rnn = nn.LSTM(4, 8)
x = torch.ones(3, 2, 4)
a, b, c = rnn(x)

# %% x has strides (80, 1, 5), which allow no such view; x.reshape() copies
x = torch.ones(8, 16, 5).transpose(1, 2)
x.view(8, 80)

# %% the signature is Net.forward(self, x, mask) (line 5)
class Net(nn.Module):
    def forward(self, x, mask):
        return x
x = torch.ones(3)
Net()(x)

# %% 8 * 16 * 5 * 5 = 3,200 elements cannot be 8 x 256; -1 instead of 256 would be 400
x = torch.ones(8, 16, 5, 5)
x.view(8, 256)
"""

AMONG = """
# %% dimension 1 of x (3) must equal layer.input_size (1)
layer = nn.GRU(1, 2)
x = torch.ones(4, 3)
layer(x)

# %% dimension 1 of a (3) must equal dimension 1 of b (4)
a, b = torch.ones(2, 3), torch.ones(2, 4)
torch.cat([a, b])

# %% dimension 1 of image (4) must equal dimension 1 of weight (3)
image, weight = torch.ones(1, 4, 16, 16), torch.ones(8, 3, 3, 3)
F.conv2d(image, weight)

# %% dimension 3 of image (2) must be at least dimension 3 of weight (3)
image, weight = torch.ones(1, 3, 9, 2), torch.ones(8, 3, 3, 3)
F.conv2d(image, weight)

# %% dimension 1 of x (10) must be a multiple of num_groups (4)
x = torch.ones(2, 10, 4)
F.group_norm(x, 4)

# %% dimension 1 of x (7) must equal dimension 0 of weight (5)
x, weight, bias = torch.ones(2, 7), torch.ones(5), torch.ones(5)
F.layer_norm(x, (5,), weight, bias)

# %% dimension 2 of x (7) must equal lstm.input_size (5)
lstm = nn.LSTM(5, 8)
x = torch.ones(3, 2, 7)
lstm(x)

# %% dimension 0 of h (2) must be twice gru.num_layers (2)
gru = nn.GRU(5, 12, 2, bidirectional=True)
h = torch.zeros(2, 3, 12)
gru(torch.ones(7, 3, 5), h)

# %% dimension 2 of x (7) would be accepted as 16
m = nn.MultiheadAttention(16, 4)
x = torch.ones(3, 2, 7)
m(x, x, x)

# %% x has 2 dimensions: 4 are accepted
norm = nn.BatchNorm2d(8)
x = torch.ones(4, 8)
norm(x)

# %% dimension 0 of x (1) must be at least 2
norm = nn.BatchNorm1d(8)
x = torch.ones(1, 8)
norm(x)

# %% t (4,) must have the shape of y, (4, 2)
y, t = torch.ones(4, 2), torch.ones(4)
nn.BCELoss()(y, t)

# %% num_groups (8) must divide num_channels (12)
nn.GroupNorm(8, 12)

# %% embed_dim (100) must be a multiple of num_heads (8)
nn.MultiheadAttention(100, 8)

# %% in_channels (3) must be a multiple of 4
nn.Conv2d(3, 8, 3, groups=4)

# %% mask is int64: mask.float() is accepted
mask = torch.tensor([1, 0])
nn.Parameter(mask)
"""

NO_RULE = """
# %% a name that is not there
x = torch.ones(2)
y = x * scale

# %% a key that is not there
x = {'a': torch.ones(2)}
x['b']

# %% a method that is not there
x = torch.ones(2)
x.veiw(1, 2)

# %% vmap
torch.func.vmap(lambda x: x if x.sum() > 0 else -x)(torch.ones(3, 2))

# %% a hook of what is written in place
net = nn.ReLU(inplace=True)
x = torch.ones(2, requires_grad=True)
net.register_full_backward_hook(print)
net(x * 2)

# %% a leaf that is written
leaf = torch.ones(3, requires_grad=True)
leaf.expand(2, 3).add_(1)
"""


def programs(text):
    """Give each program of a text, with its title."""
    return pytest.mark.parametrize(
        ("title", "text"), split_programs(HEAD, text).items()
    )


def failed(text):
    """Return what is said of a program that fails, whose own first line is 4."""
    return record_cell(HEAD + text, "<failed cell>").explanation


def names(found):
    """Return how the innermost code writes the operands."""
    return [operand.name for operand in found.given]


@programs(ALONE)
def test_the_rule_that_a_call_broke_is_the_only_one(title, text):
    assert record_cell(text, "<failed cell>").explanation.rules == (title,)


@programs(AMONG)
def test_the_rule_that_a_call_or_a_module_broke_is_found(title, text):
    assert title in record_cell(text, "<failed cell>").explanation.rules


@programs(NO_RULE)
def test_an_error_that_no_size_mends_gets_no_rule(title, text):
    found = record_cell(text, "<failed cell>").explanation
    assert found.rules == (), title
    assert "edits" not in found.text


def test_a_form_that_is_accepted_is_named_where_no_size_is():
    assert failed("torch.ones(2, 2) @ torch.ones(4, 2, 3)[0].T").rules
    text = "vector = torch.ones(3)\ntorch.mm(vector, torch.ones(3, 2))"
    rules = failed(text).rules
    assert rules == (
        "vector has 1 dimension: 2 are accepted",
        "vector.unsqueeze(0) is accepted, and gives (1, 2)",
    )


def test_an_index_out_of_range_is_named_with_the_size_that_limits_it():
    found = failed("words = torch.tensor([[1, 12, 15]])\nnn.Embedding(12, 12)(words)")
    (rule,) = found.rules
    assert rule.startswith("words[0, 1] is 12 (the largest is 15): 0 to 11 are allowed")
    assert rule.endswith("by dimension 0 of Embedding.weight (12)")
    assert "nn.Embedding(16, 12)(words)" in found.repairs[0].after


@pytest.mark.parametrize(
    "call",
    [
        "F.cross_entropy(scores, words)",
        "F.nll_loss(scores, words)",
        "nn.CrossEntropyLoss()(scores, words)",
    ],
)
def test_a_loss_of_sequences_wants_the_classes_in_dimension_1(call):
    found = failed(
        "scores = torch.randn(2, 5, 7)\nwords = torch.ones(2, 5, dtype=torch.long)\n"
        f"loss = {call}"
    )
    (rule,) = found.rules
    assert "the classes must be dimension 1 of scores: (2, 7, 5) with (2, 5)" in rule
    repaired = [repair.after for repair in found.repairs]
    assert "scores.transpose(1, 2)" in repaired[0]
    assert any("scores.flatten(0, 1), words.flatten()" in text for text in repaired)


def test_scores_of_a_sequence_are_flattened_as_the_targets_are():
    found = failed(
        "scores, words = torch.randn(2, 5, 7), torch.ones(10, dtype=torch.long)\n"
        "F.cross_entropy(scores, words)"
    )
    assert "F.cross_entropy(scores.flatten(0, 1), words)" in found.repairs[0].after


def test_a_copy_of_a_tensor_with_history_is_refused_for_its_history_alone():
    found = failed(
        "import copy\nw = torch.ones(2, requires_grad=True)\nv = {'w': w * 2}\n"
        "copy.deepcopy(v)"
    )
    rule = "v['w'] requires a gradient: v['w'].detach() is accepted"
    assert found.rules == (rule,)
    assert not any(".long()" in repair.after for repair in found.repairs)


def test_what_the_cpu_alone_refuses_is_explained_as_well():
    model = nn.Linear(3, 2)
    x = torch.ones(4, 3, dtype=torch.float64)
    with pytest.raises(RuntimeError), record() as trace:
        nn.Linear(3, 2)(x)
    assert model.weight.dtype == torch.float32
    assert "x is float64: x.float() is accepted" in trace.explanation.rules


@pytest.mark.parametrize("function", [torch.lstm, torch.gru])
def test_what_would_end_the_process_ends_a_child(function):
    with pytest.raises((TypeError, RuntimeError)), record() as trace:
        function(torch.ones(2), torch.ones(3))
    assert trace.explanation.line is not None


def test_sizes_that_do_not_load_are_named_with_the_line_that_made_them():
    found = failed(
        "model = nn.Sequential(\n    nn.Linear(3, 2))\n"
        "saved = nn.Sequential(nn.Linear(4, 2)).state_dict()\n"
        "model.load_state_dict(saved)"
    )
    assert found.rules == ("0.weight: saved has (2, 4), model has (2, 3) (line 5)",)
    assert {"model[0].weight", "saved['0.weight']", "0.weight"} <= {*found.operands}
    assert 5 in found.culprits
    assert "    nn.Linear(4, 2))" in [repair.after for repair in found.repairs]


@pytest.mark.parametrize(
    ("saved", "rule"),
    [
        (
            "{f'module.{k}': v for k, v in model.state_dict().items()}",
            "all names in saved begin with 'module.', those of model do not",
        ),
        (
            "{k[2:]: v for k, v in model.state_dict().items()}",
            "all names in model begin with '0.', those in saved do not",
        ),
        (
            "{'epoch': 3, 'net': model.state_dict()}",
            "saved['net'] has all names that model has",
        ),
        ("{'other': torch.ones(2)}", "saved lacks 0.weight, 0.bias"),
    ],
)
def test_names_that_do_not_load_are_compared(saved, rule):
    text = f"model = nn.Sequential(nn.Linear(3, 2))\nsaved = {saved}\n"
    assert rule in failed(f"{text}model.load_state_dict(saved)").rules


def test_an_optimizer_without_parameters_gets_the_line_of_some():
    found = failed(
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layers = [nn.Linear(2, 2)]\n"
        "net = Net()\n"
        "torch.optim.Adam(net.parameters())"
    )
    assert found.rules[0] == "net has no parameters"
    assert found.rules[1].startswith("net.layers is a list")


def test_items_of_a_batch_are_named_with_their_line():
    found = failed(
        "class Data(torch.utils.data.Dataset):\n"
        "    def __len__(self):\n"
        "        return 2\n"
        "    def __getitem__(self, i):\n"
        "        return torch.rand(3, 4 + i)\n"
        "for x in torch.utils.data.DataLoader(Data(), batch_size=2):\n"
        "    pass"
    )
    assert [operand.geometry.shape for operand in found.given] == [(3, 4), (3, 5)]
    assert found.given[0].name == "torch.rand(3, 4 + i) (line 8)"
    assert found.rules


def test_a_tuple_instead_of_a_tensor_is_looked_into():
    found = failed(
        "m = nn.Sequential(nn.LSTM(4, 8), nn.Linear(8, 2))\nm(torch.ones(3, 2, 4))"
    )
    assert found.rules[0].endswith("its item 0, (3, 2, 8), is accepted")
    found = failed("out = nn.LSTM(4, 8)(torch.ones(3, 2, 4))\nout.size(0)")
    assert names(found) == ["out[0]", "out[1][0]", "out[1][1]"]


def test_tensors_that_an_assertion_is_about_are_named():
    found = failed("x = torch.ones(4, 5)\nassert x.shape[1] == 4, 'not 4'")
    assert "x.shape[1] == 4" in found.expression  # from Python 3.12 on the statement
    assert names(found) == ["x"]


def test_the_truth_of_many_is_of_the_expression():
    found = failed("x = torch.ones(2, 3)\nif x > 0:\n    pass")
    assert names(found) == ["x > 0"]


def test_a_list_of_tensors_has_the_names_of_its_items():
    found = failed("parts = [torch.ones(2, n) for n in (5, 4, 3)]\ntorch.cat(parts)")
    assert names(found) == ["parts[0]", "parts[1]", "parts[2]"]
    listed = (
        "dimension 1 of parts[0] (5), dimension 1 of parts[1] (4), "
        "dimension 1 of parts[2] (3)"
    )
    assert found.rules == (f"{listed} must be equal",)


def test_what_is_frozen_is_named():
    found = failed(
        "model = nn.Linear(3, 1)\nmodel.requires_grad_(False)\n"
        "loss = model(torch.ones(2, 3)).sum()\nloss.backward()"
    )
    assert "model.weight" in found.operands
    assert found.rules[0].startswith(
        "loss depends on no tensor that requires a gradient"
    )


def test_a_tensor_that_is_cut_off_from_its_gradient_is_named():
    found = failed(
        "w = torch.ones(3, requires_grad=True)\nv = torch.ones(3, requires_grad=True)\n"
        "y = (w.detach() * v).sum()\ntorch.autograd.grad(y, w)"
    )
    assert found.rules[0].startswith("w.detach() (line 6) cuts the graph")
