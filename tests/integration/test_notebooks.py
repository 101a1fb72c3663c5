"""Every notebook runs from top to bottom, and is committed without outputs."""

import json
from pathlib import Path

import pytest

SHOWN = {
    "01-quickstart": (
        "+head = nn.Linear(512, 10)\nrepaired: (8, 10)",
        "True False\n1 real tensor of 12.0 KiB",
        "70.6 B",
    ),
    "02-materialize": (
        "tied: True -> after to_empty: False",
        "bit for bit: True",
        "rotary too: True",
        "same object as before: True",
        "same output: True",
        "replayed: ('model.rotary_emb.inv_freq', 'model.rotary_emb.original_inv_freq')",
        "uninitialized",
        "{'n_calls': 202, 'n_checked': 202}",
    ),
    "03-real-models": (
        "the same number: True",
        "torch.Tensor.item was evaluated: its value comes from 2 operator calls",
        "rows kept: 94 - on meta: (94, 512) meta",
        "(10 s are allowed)",
        "Counter({'flash attention, as on cuda': 4})",
        # 8 experts; 2,048 tokens go to 2 each: 4,096 / 8 for one of them.
        "routing=uniform, so 512 of 4,096 elements are true",
        "aten._safe_softmax.default",
        "torch.Tensor.__bool__ was evaluated",
    ),
    "04-any-script": (
        "cuda NVIDIA",
        "epoch 1: loss 2.",
        "peak 1.0 MiB on cuda:0",
        "'cuda:0': '1.0 MiB'",
        "at least two devices, cuda:0 and cpu!",
        "and one on cuda:0: in a real run the first is on the CPU, and this fails",
        "saved: model optimizer scaler",
        "the same weights: True",
        "DRAWN OTHERWISE: 2 (weight, bias)",
    ),
    "05-shapes": (
        "What is the shape of scores?",
        "Number the elements of m 0, 1, 2, … row by row. Which number stands at",
        "How many terms does wrong add up or average?",
        # 28 and all other multiples of the 7 of its windows.
        "side must be a multiple of 7",
        "✗ there is no y: give your result this name",
        # (512 * 2048 + 2048 + 2048 * 512 + 512) numbers of 4 bytes.
        "8,398,848 bytes of parameters",
    ),
    "06-errors": (
        "dimension 1 of x.flatten(1) (800) must equal dimension 1 of self.fc.weight",
        "why 800 = 32 * 5 * 5 by flatten (In[2], line 12)",
        "why 400 = fc.in_features, written (In[2], line 7)",
        "In[2], line 7  self.fc = nn.Linear(400, 10)",
        "mended: (4, 10)",
        "  24 = floor((26 - 3) / 1) + 1 by conv2d (line 11)",
        "In[8], line 5  self.lstm = nn.LSTM(64, 128)",
        "gate += 1 (In[14], line 8) writes into a tensor that",
        "In[14], line 8  gate += 1",
        "mended: (16, 16)",
        "targets is float32: targets.long() is accepted",
        "In[19], line 2  targets = torch.randint(0, 10, (64,)).float()",
        "dimension 3 of q (16) must equal dimension 2 of k (10)",
        "In[24], line 7  weights = (q @ k / q.shape[-1] ** 0.5).softmax(-1)",
        "mended: (2, 4, 10, 16)",
        "interpolate(self.up(x), size=skip.shape[2:])",
        "mended: (1, 1, 65, 65)",
        "Recording: 10 operators up to line 2",
    ),
    "07-will-it-fit": (
        "146.4 GiB at the peak does not fit h100-sxm",
        "125.5 GiB at the peak does not fit h100-sxm",
        "tried: 125.5 GiB at the peak, 101.8 GiB with fused",
        "101.8 GiB at the peak does not fit h100-sxm",
        "64.4 GiB at the peak with 8-bit fits h100-sxm",
        "batch = 4: at most 14",
    ),
    "08-meta-device": (
        "Tensor.item() cannot be called on meta tensors",
        "Cannot copy out of meta tensor",
        "5.0\ntorch.Size([5, 1])\n[1. 1. 1. 1. 1.]\nAssertionError: not zero",
        "the weights of the CPU: True",
        "torch.Tensor.to needs values of a tensor that was put on 'meta' by name",
        "needs the value of a tensor (3,)",
        "saved as the CPU has it: True",
        "a and b must have same reduction dim",
        "mat1 and mat2 shapes cannot be multiplied (3x5 and 4x8)",
        "at the peak fits a100-sxm",
        "FakeTensor cpu (3, 4)",
        "4 operators on FakeTensor were not recorded",
        "the same: (4, 6, (3, 8))",
        "one of eight holds (512, 4096)",
        "c10d.scatter_.default",
        "_c10d_functional.all_reduce.default",
    ),
    "11-check": (
        "line 4: loss size: mse_loss broadcast (8, 1) with (8,) to (8, 8)",
        "line 2: probabilities: softmax before cross_entropy",
        "line 4: detached: a term of the loss is detached",
        "line 4: softmax dimension: softmax is over a dimension of 16",
        "line 3: mixed: view of (4, 32, 48, 3) to (4, 3, 32, 48) mixes dimensions",
        "line 5: last sample: takes the last of 50 samples, not of 16 steps",
        "line 9: squeeze: squeeze() of (1, 4, 1, 1) drops dimension 0",
        "line 5: unregistered: Tower.layers is a plain list of Linear",
        "line 7: old gradients: this step uses the gradients of earlier steps",
        "line 14: uninitialized: nothing initializes model.frequencies",
        "side must be a multiple of 32",
        "N must be a multiple of 8",
        "B = 8, T = 128, D = 512",
        "[3*D, D] [B, T, 3, 8, D//8] [B, 8, T, D//8]",
    ),
    "09-gallery": (
        # As torchvision, the papers or the models' own cards count them.
        "25,557,032",  # ResNet-50
        "124,439,808",  # GPT-2
        "70,553,706,496",  # Llama 3 70B
        "46,702,792,704",  # Mixtral 8x7B
        "86,567,656",  # ViT-B/16
        "675,129,632",  # DiT-XL/2
        "2,768,345,600",  # Mamba 2.8B
    ),
    "10-many-gpus": (
        # Two steps; all gradients are 7.0 GiB.
        "all_reduce: 45 of 14.0 GiB",
        # A step gathers 6 layers of 1.0 GiB twice, and the rest of 1.0 GiB once.
        "all_gather: 26 of 26.0 GiB\nreduce_scatter: 14 of 14.0 GiB",
        "all_gather: 26 of 13.0 GiB\nreduce_scatter: 14 of 14.0 GiB",
        # Each of 6 layers: 2 forward; q, k, v, gate and up backward; two steps.
        "all_reduce: 84 of ",
        "rank 0 calls all_reduce in line 9 (4 bytes of float32), rank 1 calls",
    ),
}
BOOKS = sorted(Path(__file__).parents[2].glob("notebooks/*.ipynb"))


def test_there_are_notebooks():
    assert BOOKS


@pytest.mark.kernel
@pytest.mark.usefixtures("forked_kernels")
@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path):
    import nbformat  # takes two seconds
    from nbclient import NotebookClient

    book = nbformat.read(path, as_version=4)

    def check_next(cell, cell_index, execute_reply):
        """A cell below ``%meta repair`` is what that puts there, and more."""
        for part in execute_reply["content"]["payload"]:
            if part["source"] == "set_next_input":
                assert book.cells[cell_index + 1].source.startswith(part["text"])

    NotebookClient(
        book,
        timeout=300,
        resources={"metadata": {"path": path.parent}},
        on_cell_executed=check_next,
    ).execute()
    shown = "".join(texts(book))  # a line may come in two pieces
    for wanted in SHOWN[path.stem]:
        assert wanted in shown


def texts(book):
    """Yield what a notebook printed and showed."""
    for cell in book.cells:
        for output in cell.get("outputs", []):
            yield output.get("text", "")
            yield output.get("data", {}).get("text/html", "")


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs(path):
    cells = json.loads(path.read_text("utf-8"))["cells"]
    assert [cell["outputs"] for cell in cells if cell.get("outputs")] == []
