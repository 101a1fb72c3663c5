# ruff: noqa: E501  programs as people write them
"""For which sizes do 30 programs run? ``trace.check`` beside recordings at 80 sizes.

``python -m tests.conformance.size_conditions`` prints a row for each program: the
condition, whether it is right at each of 80 sizes, recordings and seconds. The truth is
a recording at each size, and the condition that was written by hand beside the program.
"""

import sys
import time
from collections.abc import Iterator

from meta_magic.trials.conditions import read_outcome
from meta_magic.trials.size_search import judge
from meta_magic.trials.trial import ask_trials, read_size
from tests.conformance.recorded_cells import record_cell, split_programs

NN = "import torch, torch.nn as nn, torch.nn.functional as F\n"
PROGRAMS = split_programs(
    NN,
    """
# %% U-Net of three levels | side | side % 8 == 0
side = 64
x = torch.randn(2, 4, side, side)
a = F.max_pool2d(x, 2); b = F.max_pool2d(a, 2); c = F.max_pool2d(b, 2)
up = nn.ConvTranspose2d(4, 4, 2, 2)
y = torch.cat([x, up(torch.cat([a, up(torch.cat([b, up(c)], 1)[:, :4])], 1)[:, :4])], 1)

# %% five poolings | side | side % 32 == 0
side = 96
x = torch.randn(1, 3, side, side)
skips = []
for i in range(5):
    skips.append(x)
    x = F.max_pool2d(x, 2)
for s in reversed(skips):
    x = F.interpolate(x, scale_factor=2) + s

# %% patches of a ViT by view | side | side % 16 == 0
side, p = 224, 16
x = torch.randn(2, 3, side, side)
y = x.view(2, 3, side // p, p, side // p, p).permute(0, 2, 4, 1, 3, 5).flatten(3)

# %% position embedding of fixed number | image | 64 <= image <= 71 or 8 <= image <= 15
image = 64
conv = nn.Conv2d(3, 8, 8, stride=8)
pos = nn.Parameter(torch.zeros(1, 64, 8))
y = conv(torch.randn(2, 3, image, image)).flatten(2).transpose(1, 2) + pos

# %% position table | T | T <= 512
T = 32
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(100, 8), nn.Embedding(512, 8)
    def forward(self, i):
        return self.tok(i) + self.pos.weight[: i.shape[1]]
y = Net()(torch.zeros(2, T, dtype=torch.long))

# %% heads | d_model | d_model % 12 == 0
d_model = 96
m = nn.MultiheadAttention(d_model, 12, batch_first=True)
x = torch.randn(2, 5, d_model)
y, _ = m(x, x, x)

# %% number of heads divides | heads | 48 % heads == 0
heads = 4
x = torch.randn(2, 5, 48)
y = x.view(2, 5, heads, 48 // heads).transpose(1, 2)

# %% grouped convolution | C | C % 6 == 0
C = 24
y = nn.Conv2d(C, 12, 3, groups=6)(torch.randn(1, C, 8, 8))

# %% group norm | width | width % 32 == 0
width = 64
net = nn.Sequential(nn.Conv2d(3, width, 3), nn.GroupNorm(32, width), nn.ReLU())
y = net(torch.randn(2, 3, 9, 9))

# %% written batch of a hidden state | batch | batch == 16
batch = 16
net = nn.GRU(3, 5, batch_first=True)
y, h = net(torch.randn(batch, 7, 3), torch.zeros(1, 16, 5))

# %% last batch meets a hidden state | N | N % 8 == 0
N, H = 40, 8
net = nn.GRU(3, 5, batch_first=True)
data, h = torch.randn(N, 4, 3), torch.zeros(1, H, 5)
for i in range(0, N, H):
    y, h = net(data[i : i + H], h.detach())

# %% squeeze of a batch | B | B >= 2
B = 8
net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1))
y = net(torch.randn(B, 3, 9, 9)).squeeze()

# %% squeeze of features | features | features >= 2
features = 10
x = torch.randn(4, 7)
score = nn.Linear(7, features)(x).squeeze()

# %% batch norm in training | B | B >= 2
B = 16
y = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))(torch.randn(B, 4))

# %% loss of a column | outputs | outputs == 1
outputs = 1
y = nn.Linear(4, outputs)(torch.randn(6, 4)).view(6)
loss = F.mse_loss(y, torch.randn(6))

# %% kernels need room | length | length >= 12
length = 40
net = nn.Sequential(nn.Conv1d(1, 4, 5), nn.MaxPool1d(2), nn.Conv1d(4, 4, 4))
y = net(torch.randn(2, 1, length))

# %% LeNet's linear layer | side | 28 <= side <= 31
side = 28
net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(196, 10))
y = net(torch.randn(3, 1, side, side))

# %% three poolings of CIFAR | size | 32 <= size <= 39
size = 32
net = nn.Sequential(*[nn.MaxPool2d(2) for _ in range(3)], nn.Flatten(), nn.Linear(3 * 4 * 4, 10))
y = net(torch.randn(2, 3, size, size))

# %% reflect padding | T | T >= 9
T = 30
y = F.pad(torch.randn(1, 1, T), (8, 8), mode="reflect")

# %% two views of a batch | B | B % 2 == 0
B = 10
x = torch.randn(B, 3)
a, b = x.view(2, -1, 3)
y = F.normalize(a, dim=1) @ F.normalize(b, dim=1).T

# %% gradient accumulation by chunks | B | B % 4 == 0
B = 12
x = torch.randn(B, 3)
parts = x.reshape(4, B // 4, 3)
y = torch.stack([p.sum(0) for p in parts])

# %% windows of Swin | side | side % 7 == 0
side = 56
x = torch.randn(2, side, side, 4)
w = x.view(2, side // 7, 7, side // 7, 7, 4).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, 4)

# %% pixel shuffle | channels | channels % 9 == 0
channels = 27
y = F.pixel_shuffle(torch.randn(2, channels, 5, 5), 3)

# %% rotary halves | dim | dim % 2 == 0 or dim <= 3
dim = 16
x = torch.randn(2, 5, dim)
freqs = torch.outer(torch.arange(5.), 1 / 10000 ** (torch.arange(0, dim, 2) / dim))
a, b = x[..., ::2], x[..., 1::2]
y = torch.stack([a * freqs.cos() - b * freqs.sin(), a * freqs.sin() + b * freqs.cos()], -1).flatten(2)

# %% GLU | hidden | hidden % 2 == 0
hidden = 20
net = nn.Sequential(nn.Linear(5, hidden), nn.GLU(), nn.Linear(10, 3))
y = F.glu(torch.randn(3, hidden), -1)

# %% top k of classes | classes | classes >= 5
classes = 10
logits = nn.Linear(8, classes)(torch.randn(4, 8))
values, at = logits.topk(5)

# %% labels of a one-hot | classes | classes == 10
classes = 10
logits = nn.Linear(8, classes)(torch.randn(4, 8))
loss = F.cross_entropy(logits, torch.softmax(torch.randn(4, 10), -1))

# %% strided sequence, step kept | T | T % 4 == 1 or T <= 4
T = 33
x = torch.randn(2, 3, T)
y = F.conv1d(x, torch.randn(3, 3, 1), stride=4)
z = F.interpolate(y, size=4 * (y.shape[-1] - 1) + 1) + x

# %% context of a causal mask | seq | seq <= 64
seq, block = 24, 64
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(block, block)))
    def forward(self, q):
        t = q.shape[1]
        a = q @ q.transpose(1, 2)
        return a.masked_fill(self.mask[:t, :t] == 0, -1e9).softmax(-1) @ q
y = Attention()(torch.randn(2, seq, 8))

# %% grouped query heads | n_head | n_head % 4 == 0 or n_head == 1
n_head, n_kv, hd = 8, 4, 16
q, k = torch.randn(2, n_head, 5, hd), torch.randn(2, n_kv, 5, hd)
a = q @ k.repeat_interleave(n_head // n_kv, 1).transpose(2, 3)
""",
)
"""By title a program, the name of its size, and the condition written by hand."""


def list_sizes(size: int) -> list[int]:
    """Return 80 sizes around the block's own one, and below and far above."""
    near = [*range(1, 61), *range(max(61, size - 5), max(61, size - 5) + 10)]
    far = [96, 100, 127, 128, 129, 192, 224, 225, 255, 256, 448, 512, 513, 640, 1024]
    return [*dict.fromkeys([*near, *far])][:80]


def find_truth(trace, name: str, size: int, sizes: list[int]) -> dict[int, bool]:
    """Return whether the block runs at each size, by a recording at each."""
    outcomes = ask_trials(
        trace,
        read_outcome,
        [{name: n} for n in [size, *sizes]],
        at_once=2,
        asks_failed=True,
    )
    return {
        n: not judge(one, outcomes[0]).reason
        for n, one in zip(sizes, outcomes[1:], strict=True)
    }


def measure(titles) -> Iterator[tuple]:
    """Yield title, condition, wrong sizes, recordings and seconds of each program."""
    for title in titles:
        short, name, truth = title.split(" | ")
        trace = record_cell(PROGRAMS[title], f"<{title}>")
        start = time.monotonic()
        found = trace.check(name)
        seconds = time.monotonic() - start
        tried = found.sizes[name]
        size = read_size(trace, name)
        sizes = list_sizes(size)
        real = find_truth(trace, name, size, sizes)
        written = {n: eval(truth, {name: n}) for n in sizes}
        said = {n: bool(eval(found.condition, {name: n})) for n in sizes}
        wrong = [n for n in sizes if said[n] != real[n]]
        odd = [n for n in sizes if written[n] != real[n]]
        yield short, found, wrong, odd, len(tried), seconds


def main() -> None:
    n_right = 0
    words = sys.argv[1:] or [""]
    titles = [one for one in PROGRAMS if any(word in one for word in words)]
    for title, found, wrong, odd, n, seconds in measure(titles):
        n_right += not wrong
        row = f"{'NO' if wrong else 'ok'}  {title}: {found.condition}"
        row += f" | {n} recordings, {seconds:.1f} s"
        row += f" | wrong at {wrong[:12]}" if wrong else ""
        print(row, f"| by hand wrong at {odd[:12]}" if odd else "", flush=True)
        if "-v" in sys.argv:
            print(found, found.why, found.line, found.sizes)
    print(f"{n_right} of {len(titles)} right")


if __name__ == "__main__":
    main()
