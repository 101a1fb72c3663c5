"""What made an operand: bindings, arguments of callers, defaults, and counts."""

import pytest

from tests.conformance.explanations import record_cell

HEAD = "import torch\nfrom torch import nn\n"


def explain(text):
    return record_cell(HEAD + text, "<failed cell>").explanation


@pytest.mark.parametrize(
    ("text", "sentence", "line"),
    [
        (
            (
                "def make(n, frames=0):\n"
                "    return torch.ones(n, frames, 4) if frames else torch.ones(n, 4)\n"
                "video = make(2)\n"
                "video.permute(0, 2, 1)"
            ),
            "video = make(2) (line 5)",
            3,  # the default
        ),
        (
            (
                "def scale(t, mean):\n"
                "    return t.sub_(torch.tensor(mean)[:, None, None])\n"
                "scale(torch.ones(1, 4, 4), (0.5, 0.5, 0.5))"
            ),
            "",
            5,  # the call that passes three numbers
        ),
        (
            (
                "class Net(nn.Module):\n"
                "    def __init__(self, kind):\n"
                "        super().__init__()\n"
                "        self.kind = kind\n"
                "    def forward(self, x):\n"
                "        mask = x.to(self.kind)\n"
                "        return x.masked_fill(mask, 0)\n"
                "net = Net(torch.long)\n"
                "net(torch.ones(2))"
            ),
            "mask = x.to(self.kind) (line 8)",
            10,  # the object whose attribute it is
        ),
    ],
)
def test_an_operand_is_followed_to_the_line_that_made_it(text, sentence, line):
    found = explain(text)
    assert line in found.culprits
    assert not sentence or sentence in found.made
    assert all(one in found.text for one in found.made)


@pytest.mark.parametrize(
    ("text", "chain"),
    [
        (
            (
                "words = ['a', 'b', 'c']\ncount = len(words)\n"
                "nn.Linear(count, 2)(torch.ones(4, 5))"
            ),
            "3 = count = len(words) (line 4)",
        ),
        (
            (
                "import numpy as np\nrows = np.ones((4, 5), dtype='float32')\n"
                "x = torch.from_numpy(rows)\nnn.Linear(7, 2)(x)"
            ),
            "5 = dimension 1 of torch.from_numpy(rows) (line 5)",
        ),
        (
            (
                "import numpy as np\nrows = np.ones((4, 5))\n"
                "nn.Linear(rows.shape[1], 2)(torch.ones(2, 6))"
            ),
            "5 = Linear.in_features = rows.shape[1] (line 5)",
        ),
    ],
)
def test_a_number_that_python_counts_has_the_expression_as_origin(text, chain):
    assert chain in explain(text).text
