"""The rules that are found: of operators, as torch documents them, and of modules."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from meta_magic import record
from tests.conformance.explanations import record_cell


def explain(run):
    """Return what is said of a function that fails."""
    with pytest.raises(Exception), record() as trace:  # noqa: B017, PT011  torch's
        run()
    return trace.explanation


def test_features_must_be_those_of_the_weight():
    x, weight = torch.ones(4, 800), torch.ones(10, 400)
    rules = explain(lambda: F.linear(x, weight)).rules
    assert rules == ("dimension 1 of x (800) must equal dimension 1 of weight (400)",)


def test_sizes_that_are_added_must_be_equal_or_1():
    a, b = torch.ones(3, 4), torch.ones(3, 5)
    assert explain(lambda: a + b).rules == (
        "dimension 1 of a (4) must equal dimension 1 of b (5) or be 1",
    )


def test_a_size_that_must_equal_1_is_said_once():
    x, layer = torch.ones(4, 3), nn.GRU(1, 2)
    rules = explain(lambda: layer(x)).rules
    assert rules[0] == "dimension 1 of x (3) must equal layer.input_size (1)"


def test_sizes_beside_those_that_are_joined_must_be_equal():
    a, b = torch.ones(2, 3), torch.ones(2, 4)
    rules = explain(lambda: torch.cat([a, b])).rules
    assert rules[0] == "dimension 1 of a (3) must equal dimension 1 of b (4)"


def test_channels_must_be_those_of_the_weight():
    image, weight = torch.ones(1, 4, 16, 16), torch.ones(8, 3, 3, 3)
    rules = explain(lambda: F.conv2d(image, weight)).rules
    assert rules[0] == "dimension 1 of image (4) must equal dimension 1 of weight (3)"


def test_a_kernel_must_fit_into_the_image():
    image, weight = torch.ones(1, 3, 9, 2), torch.ones(8, 3, 3, 3)
    rules = explain(lambda: F.conv2d(image, weight)).rules
    assert (
        "dimension 3 of image (2) must be at least dimension 3 of weight (3)" in rules
    )


def test_groups_must_divide_the_channels():
    x = torch.ones(2, 10, 4)
    rules = explain(lambda: F.group_norm(x, 4)).rules
    assert "dimension 1 of x (10) must be a multiple of num_groups (4)" in rules


def test_the_dtype_that_is_asked_for_is_named():
    weight, indices = torch.ones(5, 3), torch.ones(4)
    rules = explain(lambda: F.embedding(indices, weight)).rules
    assert rules == ("indices is float32: indices.long() is accepted",)


def test_an_argument_has_the_name_that_torch_gives_it():
    x = torch.ones(2, 3)
    rules = explain(lambda: torch.softmax(x, dim=2)).rules
    assert rules == ("dim (2) must be from -2 to 1",)


def test_the_first_stands_for_several_sizes_that_must_be_equal():
    x, weight, bias = torch.ones(2, 7), torch.ones(5), torch.ones(5)
    rules = explain(lambda: F.layer_norm(x, (5,), weight, bias)).rules
    assert rules[0] == "dimension 1 of x (7) must equal dimension 0 of weight (5)"


def test_a_form_that_is_accepted_is_named_where_no_size_is():
    x = torch.ones(4, 2, 3)
    rules = explain(lambda: torch.linalg.inv(torch.ones(2, 2)) @ x[0].T).rules
    assert rules
    vector = torch.ones(3)
    rules = explain(lambda: torch.mm(vector, torch.ones(3, 2))).rules
    assert rules == (
        "vector has 1 dimension: 2 are accepted",
        "vector.unsqueeze(0) is accepted, and gives (1, 2)",
    )


def test_an_error_that_is_not_about_sizes_has_no_rule():
    def write():
        leaf = torch.ones(3, requires_grad=True)
        leaf.expand(2, 3).add_(1)

    assert explain(write).rules == ()


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


HOOKED = (
    "net = nn.ReLU(inplace=True)\nx = torch.ones(2, requires_grad=True)\n"
    "net.register_full_backward_hook(print)\nnet(x * 2)"
)


@pytest.mark.parametrize(
    "text",
    [
        "x = torch.ones(2)\ny = x * scale",
        "x = {'a': torch.ones(2)}\nx['b']",
        "x = torch.ones(2)\nx.veiw(1, 2)",
        "torch.func.vmap(lambda x: x if x.sum() > 0 else -x)(torch.ones(3, 2))",
        HOOKED,
    ],
)
def test_an_error_that_no_size_mends_gets_no_rule(text):
    found = failed(text)
    assert found.rules == ()
    assert "edits" not in found.text


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


HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
GRU = """
gru = nn.GRU(5, 12, 2, bidirectional=True)
h = torch.zeros(2, 3, 12)
gru(torch.ones(7, 3, 5), h)
"""


def failed(text):
    """Return what is said of a program that fails, whose own first line is 4."""
    return record_cell(HEAD + text, "<failed cell>").explanation


def names(found):
    """Return how the innermost code writes the operands."""
    return [operand.name for operand in found.given]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (
            "lstm = nn.LSTM(5, 8)\nx = torch.ones(3, 2, 7)\nlstm(x)",
            "dimension 2 of x (7) must equal lstm.input_size (5)",
        ),
        (GRU, "dimension 0 of h (2) must be twice gru.num_layers (2)"),
        (
            "m = nn.MultiheadAttention(16, 4)\nx = torch.ones(3, 2, 7)\nm(x, x, x)",
            "dimension 2 of x (7) would be accepted as 16",
        ),
        (
            "norm = nn.BatchNorm2d(8)\nx = torch.ones(4, 8)\nnorm(x)",
            "x has 2 dimensions: 4 are accepted",
        ),
        (
            "norm = nn.BatchNorm1d(8)\nx = torch.ones(1, 8)\nnorm(x)",
            "dimension 0 of x (1) must be at least 2",
        ),
        (
            "y, t = torch.ones(4, 2), torch.ones(4)\nnn.BCELoss()(y, t)",
            "t (4,) must have the shape of y, (4, 2)",
        ),
    ],
)
def test_a_module_that_checks_what_it_is_given_is_probed_as_a_whole(text, rule):
    assert rule in failed(text).rules


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("nn.GroupNorm(8, 12)", "num_groups (8) must divide num_channels (12)"),
        (
            "nn.MultiheadAttention(100, 8)",
            "embed_dim (100) must be a multiple of num_heads (8)",
        ),
        ("nn.Conv2d(3, 8, 3, groups=4)", "in_channels (3) must be a multiple of 4"),
        (
            "mask = torch.tensor([1, 0])\nnn.Parameter(mask)",
            "mask is int64: mask.float() is accepted",
        ),
        (
            "y, t = torch.ones(5, 3), torch.tensor([1] * 5)\nnn.CrossEntropyLoss(y, t)",
            "make the module first, then call it: CrossEntropyLoss()(y, t)",
        ),
        ("torch.tensor([1, 2], requires_grad=True)", "dtype=torch.float32 is accepted"),
    ],
)
def test_what_makes_a_module_or_a_tensor_is_probed_as_well(text, rule):
    assert rule in failed(text).rules


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


def test_an_optimizer_of_what_is_no_leaf_has_it_as_an_operand():
    found = failed(
        "w = torch.ones(2, requires_grad=True)\nv = w * 2\ntorch.optim.SGD([v], lr=1)"
    )
    assert found.rules == ("v requires a gradient: v.detach() is accepted",)


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


def test_sizes_that_are_unpacked_are_counted():
    found = failed("x = torch.ones(4, 5)\nb, t, c = x.shape")
    assert found.expression == "b, t, c = x.shape"
    assert names(found) == ["x"]
    assert found.rules == ("x has 2 dimensions, and 3 are unpacked",)


def test_what_a_module_returned_is_counted():
    found = failed("rnn = nn.LSTM(4, 8)\nx = torch.ones(3, 2, 4)\na, b, c = rnn(x)")
    shapes = "(3, 2, 8); (1, 2, 8) and (1, 2, 8)"
    assert found.rules == (f"rnn(x) returned 2 values: {shapes}",)


def test_a_tuple_instead_of_a_tensor_is_looked_into():
    found = failed(
        "m = nn.Sequential(nn.LSTM(4, 8), nn.Linear(8, 2))\nm(torch.ones(3, 2, 4))"
    )
    assert found.rules[0].endswith("its item 0, (3, 2, 8), is accepted")
    found = failed("out = nn.LSTM(4, 8)(torch.ones(3, 2, 4))\nout.size(0)")
    assert names(found) == ["out[0]", "out[1][0]", "out[1][1]"]


def test_arguments_that_forward_lacks_are_named_with_its_line():
    found = failed(
        "class Net(nn.Module):\n"
        "    def forward(self, x, mask):\n"
        "        return x\n"
        "x = torch.ones(3)\n"
        "Net()(x)"
    )
    assert names(found) == ["x"]
    assert found.rules == ("the signature is Net.forward(self, x, mask) (line 5)",)


def test_tensors_that_an_assertion_is_about_are_named():
    found = failed("x = torch.ones(4, 5)\nassert x.shape[1] == 4, 'not 4'")
    assert "x.shape[1] == 4" in found.expression  # from Python 3.12 on the statement
    assert names(found) == ["x"]


def test_the_truth_of_many_is_of_the_expression():
    found = failed("x = torch.ones(2, 3)\nif x > 0:\n    pass")
    assert names(found) == ["x > 0"]


def test_what_leaves_the_graph_has_to_be_detached():
    found = failed("w = torch.ones(3, requires_grad=True)\nw.numpy()")
    assert found.rules == ("w requires a gradient: w.detach() is accepted",)


def test_a_list_of_tensors_has_the_names_of_its_items():
    found = failed("parts = [torch.ones(2, n) for n in (5, 4, 3)]\ntorch.cat(parts)")
    assert names(found) == ["parts[0]", "parts[1]", "parts[2]"]
    listed = (
        "dimension 1 of parts[0] (5), dimension 1 of parts[1] (4), "
        "dimension 1 of parts[2] (3)"
    )
    assert found.rules == (f"{listed} must be equal",)


def test_the_elements_of_a_view_are_multiplied():
    found = failed("x = torch.ones(8, 16, 5, 5)\nx.view(8, 256)")
    # 8 * 16 * 5 * 5 = 3200, and 3200 / 8 = 400.
    (rule,) = found.rules
    assert rule.startswith("8 * 16 * 5 * 5 = 3,200 elements cannot be 8 x 256; ")
    assert rule.endswith("-1 instead of 256 would be 400")


def test_strides_that_allow_no_view_are_shown():
    found = failed("x = torch.ones(8, 16, 5).transpose(1, 2)\nx.view(8, 80)")
    assert found.rules == (
        "x has strides (80, 1, 5), which allow no such view; x.reshape() copies",
    )


def test_a_dimension_has_limits():
    found = failed("x = torch.ones(2, 3)\nx.transpose(0, 3)")
    assert found.rules == ("dim1 (3) must be from -2 to 1",)


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
