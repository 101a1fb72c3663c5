# ruff: noqa: E501  programs as people write them
"""Which sizes of twelve models have a name? ``record(dims=...)`` at values held out.

``python -m tests.conformance.named_sizes [PART OF A TITLE]`` prints a row for each
program: the sizes that depend on a name, how many have a formula, how many formulas
fail at two assignments that the search did not choose, and processor seconds.
"""

import os
import sys
from collections.abc import Iterator

from meta_magic.errors import TrialError
from meta_magic.trials.dims import find_dims, list_tensors, read_calls
from meta_magic.trials.size_formulas import evaluate
from meta_magic.trials.trial import ask_trials
from tests.conformance.recorded_cells import record_cell, split_programs

NN = "import math, torch, torch.nn as nn, torch.nn.functional as F\n"
PROGRAMS = split_programs(
    NN,
    """
# %% GPT | B=5 T=12 D=48 H=2 V=70 | B=7 T=9 D=24 H=8 V=33
B, T, D, H, V, L = 4, 16, 32, 4, 50, 2
class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).split(d, dim=2)
        q, k, v = (y.view(b, t, self.h, d // self.h).transpose(1, 2) for y in (q, k, v))
        a = (q @ k.transpose(-2, -1)) / (d // self.h) ** 0.5
        a = a.masked_fill(torch.tril(torch.ones(t, t)) == 0, float("-inf")).softmax(-1)
        y = (a @ v).transpose(1, 2).reshape(b, t, d)
        x = x + self.proj(y)
        return x + self.mlp(self.ln2(x))
class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.ModuleList(Block(D, H) for _ in range(L))
        self.ln, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
    def forward(self, idx):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1]))
        for block in self.blocks: x = block(x)
        return self.head(self.ln(x))
idx = torch.randint(0, V, (B, T))
logits = GPT()(idx)
loss = F.cross_entropy(logits.view(B * T, V), idx.view(B * T))

# %% Llama, grouped heads | B=5 T=12 D=48 M=30 H=6 K=3 V=70 | B=3 T=5 D=64 M=100 H=8 K=4 V=33
from transformers import LlamaConfig, LlamaForCausalLM
B, T, D, M, H, K, V = 2, 9, 32, 48, 4, 2, 60
config = LlamaConfig(vocab_size=V, hidden_size=D, intermediate_size=M, num_hidden_layers=2, num_attention_heads=H, num_key_value_heads=K)
out = LlamaForCausalLM(config)(torch.zeros(B, T, dtype=torch.long))

# %% U-Net | B=5 S=64 C=6 | B=7 S=20 C=12
B, S, C = 2, 32, 8
def double(i, o): return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.Conv2d(o, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())
class UNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.d1, self.d2, self.d3 = double(3, c), double(c, 2 * c), double(2 * c, 4 * c)
        self.pool = nn.MaxPool2d(2)
        self.u2, self.u1 = nn.ConvTranspose2d(4 * c, 2 * c, 2, stride=2), nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.e2, self.e1 = double(4 * c, 2 * c), double(2 * c, c)
        self.out = nn.Conv2d(c, 1, 1)
    def forward(self, x):
        a = self.d1(x); b = self.d2(self.pool(a)); m = self.d3(self.pool(b))
        b = self.e2(torch.cat([self.u2(m), b], 1))
        a = self.e1(torch.cat([self.u1(b), a], 1))
        return self.out(a)
y = UNet(C)(torch.randn(B, 3, S, S))

# %% LSTM | B=5 T=12 E=8 H=16 V=70 | B=6 T=3 E=20 H=9 V=33
B, T, E, H, V = 4, 7, 12, 10, 50
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, E)
        self.lstm = nn.LSTM(E, H, num_layers=2, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * H, V)
    def forward(self, x):
        out, (h, c) = self.lstm(self.emb(x))
        return self.fc(out), torch.cat([h[-2], h[-1]], 1)
logits, last = Tagger()(torch.randint(0, V, (B, T)))

# %% Mixtral | B=5 T=12 D=48 M=64 H=6 V=70 | B=4 T=20 D=96 M=80 H=2 V=100
from transformers import MixtralConfig, MixtralForCausalLM
B, T, D, M, H, V = 2, 8, 32, 48, 4, 60
config = MixtralConfig(vocab_size=V, hidden_size=D, intermediate_size=M, num_hidden_layers=2, num_attention_heads=H, num_key_value_heads=2, num_local_experts=4)
out = MixtralForCausalLM(config)(torch.zeros(B, T, dtype=torch.long))

# %% ViT | B=5 S=64 P=16 D=48 H=6 M=80 | B=7 S=40 P=10 D=64 H=2 M=30
from transformers import ViTConfig, ViTForImageClassification
B, S, P, D, H, M = 2, 32, 8, 32, 4, 64
config = ViTConfig(image_size=S, patch_size=P, hidden_size=D, num_attention_heads=H, num_hidden_layers=2, intermediate_size=M)
out = ViTForImageClassification(config)(torch.zeros(B, 3, S, S))

# %% ResNet-50, odd sides | B=3 S=133 C=7 | B=5 S=75 C=20
from transformers import ResNetConfig, ResNetForImageClassification
B, S, C = 2, 97, 10
out = ResNetForImageClassification(ResNetConfig(num_labels=C))(torch.zeros(B, 3, S, S))

# %% GAN | B=5 Z=30 C=7 | B=3 Z=10 C=9
B, Z, C, S = 8, 24, 6, 32
gen = nn.Sequential(
    nn.ConvTranspose2d(Z, C * 4, 4, 1, 0, bias=False), nn.BatchNorm2d(C * 4), nn.ReLU(True),
    nn.ConvTranspose2d(C * 4, C * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(C * 2), nn.ReLU(True),
    nn.ConvTranspose2d(C * 2, C, 4, 2, 1, bias=False), nn.BatchNorm2d(C), nn.ReLU(True),
    nn.ConvTranspose2d(C, 3, 4, 2, 1), nn.Tanh())
disc = nn.Sequential(
    nn.Conv2d(3, C, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(C, C * 2, 4, 2, 1), nn.BatchNorm2d(C * 2), nn.LeakyReLU(0.2),
    nn.Conv2d(C * 2, C * 4, 4, 2, 1), nn.BatchNorm2d(C * 4), nn.LeakyReLU(0.2), nn.Conv2d(C * 4, 1, 4, 1, 0), nn.Flatten())
og, od = torch.optim.Adam(gen.parameters()), torch.optim.Adam(disc.parameters())
bce = nn.BCEWithLogitsLoss()
real = torch.randn(B, 3, S, S)
fake = gen(torch.randn(B, Z, 1, 1))
lossd = bce(disc(real), torch.ones(B, 1)) + bce(disc(fake.detach()), torch.zeros(B, 1))
od.zero_grad(); lossd.backward(); od.step()
lossg = bce(disc(fake), torch.ones(B, 1))
og.zero_grad(); lossg.backward(); og.step()

# %% diffusion UNet | B=3 C=24 S=24 E=20 | B=5 C=8 S=12 E=48
B, C, S, E = 2, 16, 16, 32
class Res(nn.Module):
    def __init__(self, i, o, e):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(4, i), nn.Conv2d(i, o, 3, padding=1)
        self.t = nn.Linear(e, o)
        self.n2, self.c2 = nn.GroupNorm(4, o), nn.Conv2d(o, o, 3, padding=1)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()
    def forward(self, x, e):
        h = self.c1(F.silu(self.n1(x))) + self.t(F.silu(e))[:, :, None, None]
        return self.c2(F.silu(self.n2(h))) + self.skip(x)
class Attention(nn.Module):
    def __init__(self, c, heads=4):
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(4, c)
        self.qkv, self.out = nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)
    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, self.heads, c // self.heads, h * w).unbind(1)
        a = (q.transpose(-2, -1) @ k * (c // self.heads) ** -0.5).softmax(-1)
        return x + self.out((a @ v.transpose(-2, -1)).transpose(-2, -1).reshape(b, c, h, w))
class UNet(nn.Module):
    def __init__(self, c, e):
        super().__init__()
        self.e, self.c = e, c
        self.time = nn.Sequential(nn.Linear(c, e), nn.SiLU(), nn.Linear(e, e))
        self.first = nn.Conv2d(3, c, 3, padding=1)
        self.d1, self.d2 = Res(c, c, e), Res(c, 2 * c, e)
        self.down = nn.Conv2d(c, c, 3, stride=2, padding=1)
        self.mid, self.att = Res(2 * c, 2 * c, e), Attention(2 * c)
        self.up = nn.ConvTranspose2d(2 * c, c, 4, 2, 1)
        self.u1 = Res(2 * c, c, e)
        self.last = nn.Conv2d(c, 3, 3, padding=1)
    def forward(self, x, t):
        half = self.c // 2
        f = torch.exp(-math.log(10000) * torch.arange(half) / half)
        a = t[:, None] * f[None]
        e = self.time(torch.cat([a.sin(), a.cos()], 1))
        x1 = self.d1(self.first(x), e)
        m = self.att(self.mid(self.d2(self.down(x1), e), e))
        return self.last(self.u1(torch.cat([self.up(m), x1], 1), e))
noise = torch.randn(B, 3, S, S)
out = UNet(C, E)(noise, torch.rand(B))
loss = F.mse_loss(out, noise)
loss.backward()

# %% T5 | B=3 S=12 T=7 D=40 M=30 H=6 K=10 V=70 | B=5 S=7 T=11 D=24 M=20 H=3 K=16 V=33
from transformers import T5Config, T5ForConditionalGeneration
B, S, T, D, M, H, K, V = 2, 9, 6, 32, 48, 4, 8, 60
config = T5Config(vocab_size=V, d_model=D, d_kv=K, d_ff=M, num_layers=2, num_heads=H)
out = T5ForConditionalGeneration(config)(input_ids=torch.zeros(B, S, dtype=torch.long), decoder_input_ids=torch.zeros(B, T, dtype=torch.long))

# %% audio CNN with a GRU | B=3 N=4800 M=30 H=20 C=7 | B=5 N=6100 M=64 H=12 C=20
B, N, M, H, C = 2, 4000, 40, 24, 10
class Audio(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(400))
        self.mel = nn.Linear(201, M)
        self.conv = nn.Sequential(nn.Conv1d(M, 32, 5, stride=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(32, 32, 3, stride=2), nn.ReLU())
        self.gru, self.fc = nn.GRU(32, H, batch_first=True, bidirectional=True), nn.Linear(2 * H, C)
    def forward(self, x):
        s = torch.stft(x, 400, 160, window=self.window, return_complex=True).abs()
        f = self.mel(s.transpose(1, 2)).transpose(1, 2)
        y, _ = self.gru(self.conv(f).transpose(1, 2))
        return self.fc(y.mean(1))
out = Audio()(torch.randn(B, N))

# %% nn.Transformer | B=4 S=8 T=9 D=48 H=6 M=80 V=70 | B=2 S=12 T=5 D=24 H=3 M=40 V=33
B, S, T, D, H, M, V = 3, 10, 7, 32, 4, 64, 50
model = nn.Transformer(D, H, 2, 2, M, batch_first=True)
emb, head = nn.Embedding(V, D), nn.Linear(D, V)
src, tgt = torch.randint(0, V, (B, S)), torch.randint(0, V, (B, T))
mask = nn.Transformer.generate_square_subsequent_mask(T)
logits = head(model(emb(src), emb(tgt), tgt_mask=mask))
loss = F.cross_entropy(logits.reshape(-1, V), tgt.reshape(-1))
loss.backward()
""",
)
"""By title a program, and twice values of its names that are held out."""


def count_failures(trace, dims, values: dict[str, int]) -> tuple[int, list[str]]:
    """Return how many formulas are tried at values, and those that fail there."""
    (again,) = ask_trials(trace, read_calls, [values])
    if isinstance(again, TrialError):
        return 0, [f"does not run: {again}"]
    others = again.align(read_calls(trace))
    n_tried, failing = 0, []
    for use in list_tensors(trace.program):
        shape = use.find(others[use.call])
        if shape is None:
            continue
        for text, size in zip(dims.name(use.tensor, use.shape), shape, strict=True):
            if not text.isdigit():
                n_tried += 1
                if evaluate(text, dims.values | values) != size:
                    failing.append(
                        f"{text} is {size} in line {trace.ops[use.call].line}"
                    )
    return n_tried, failing


def measure(titles) -> Iterator[tuple]:
    """Yield title, names, failures and seconds of each program."""
    for title in titles:
        name, *given = title.split(" | ")
        held_out = [
            {n: int(size) for n, size in (one.split("=") for one in values.split())}
            for values in given
        ]
        trace = record_cell(PROGRAMS[title], f"<{name}>")
        start = sum(os.times()[:4])
        dims = find_dims(trace, [*held_out[0]])
        seconds = sum(os.times()[:4]) - start
        tried = [count_failures(trace, dims, values) for values in held_out]
        yield name, trace, dims, tried, seconds


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "-v"] or [""]
    titles = [one for one in PROGRAMS if any(word in one for word in words)]
    print(
        "| model | calls | sizes that depend on a name | with a formula | tried at values held out | fail | processor seconds |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|")
    for title, trace, dims, tried, seconds in measure(titles):
        failing = [text for _, found in tried for text in found]
        print(
            f"| {title} | {len(trace.ops):,} | {dims.moving:,} | {dims.named / max(dims.moving, 1):.1%} | "
            f"{sum(n for n, _ in tried):,} | {len(failing)} | {seconds:.1f} |",
            flush=True,
        )
        for one in [*dims.caveats, *dict.fromkeys(failing)][:8]:
            print("    ", one)
        if "-v" in sys.argv:
            rows = {
                f"{op.op} {op.line}: {dims.name(o.tensor_id, o.shape)} {o.shape}"
                for op in trace.ops
                for o in op.outputs
                if any(
                    n > 4 and t.isdigit()
                    for n, t in zip(
                        o.shape, dims.name(o.tensor_id, o.shape), strict=True
                    )
                )
            }
            print(*sorted(rows)[:40], sep="\n      ")


if __name__ == "__main__":
    main()
