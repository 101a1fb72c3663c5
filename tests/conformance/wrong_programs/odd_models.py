"""Right programs that look odd: fine-tuning, generation, detection and more.

``import torch, torch.nn as nn, torch.nn.functional as F, math, copy`` stands before each.
"""
# ruff: noqa: B905, E402, E501, E702, F821, I001, RUF059, RUF100
# fmt: off

# %% group relative policy with a ratio of one
model = nn.Sequential(nn.Embedding(30, 16), nn.Linear(16, 30))
ids = torch.randint(0, 30, (6, 9))
rewards = torch.randn(2, 3)
adv = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).view(-1)
logp = model(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
ratio = torch.exp(logp - logp.detach())
mask = (ids[:, 1:] != 0).float()
loss = -((ratio * adv[:, None]) * mask).sum() / mask.sum()
loss.backward()

# %% average of weights by lerp
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))
ema = copy.deepcopy(model).eval().requires_grad_(False)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = F.mse_loss(model(torch.randn(4, 8)), torch.randn(4, 1))
    opt.zero_grad(set_to_none=True); loss.backward(); opt.step()
    decay = min(0.999, (1 + step) / (10 + step))
    with torch.no_grad():
        for e, p in zip(ema.parameters(), model.parameters()):
            e.lerp_(p, 1 - decay)
        for e, b in zip(ema.buffers(), model.buffers()):
            e.copy_(b)
print(ema(torch.randn(2, 8)).shape)

# %% vector quantization, straight through
class VQ(nn.Module):
    def __init__(self, n=32, d=8):
        super().__init__()
        self.codes = nn.Embedding(n, d)
    def forward(self, z):
        b, d, h, w = z.shape
        flat = z.permute(0, 2, 3, 1).reshape(-1, d)
        dist = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.codes.weight.T + self.codes.weight.pow(2).sum(1)
        idx = dist.argmin(1)
        q = self.codes(idx).view(b, h, w, d).permute(0, 3, 1, 2)
        loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(q.detach(), z)
        return z + (q - z).detach(), loss
enc, dec, vq = nn.Conv2d(3, 8, 4, 4), nn.ConvTranspose2d(8, 3, 4, 4), VQ()
x = torch.randn(2, 3, 16, 16)
q, commit = vq(enc(x))
(F.mse_loss(dec(q), x) + commit).backward()

# %% accumulation with a scaler, clipping and a warmup
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=2)
cos = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 6)
sched = torch.optim.lr_scheduler.SequentialLR(opt, [warm, cos], milestones=[2])
scaler = torch.amp.GradScaler("cpu")
for step in range(8):
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(torch.randn(4, 8)), torch.randint(0, 3, (4,))) / 2
    scaler.scale(loss).backward()
    if step % 2:
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt); scaler.update(); sched.step()
        opt.zero_grad(set_to_none=True)

# %% prefill is causal, decoding has one query
class Attn(nn.Module):
    def __init__(self, d=32, h=4, g=2):
        super().__init__()
        self.h, self.g, self.e = h, g, d // h
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, g * d // h), nn.Linear(d, g * d // h)
    def forward(self, x, cache=None):
        b, t, _ = x.shape
        q = self.q(x).view(b, t, self.h, self.e).transpose(1, 2)
        k = self.k(x).view(b, t, self.g, self.e).transpose(1, 2)
        v = self.v(x).view(b, t, self.g, self.e).transpose(1, 2)
        if cache:
            k, v = torch.cat((cache[0], k), -2), torch.cat((cache[1], v), -2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1, enable_gqa=True)
        return y.transpose(1, 2).flatten(2), (k, v)
attn = Attn().eval()
with torch.no_grad():
    y, cache = attn(torch.randn(1, 6, 32))
    for _ in range(3):
        y, cache = attn(torch.randn(1, 1, 32), cache)

# %% router that keeps two of four
class MoE(nn.Module):
    def __init__(self, d=16, n=4):
        super().__init__()
        self.gate = nn.Linear(d, n, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(d, 32), nn.SiLU(), nn.Linear(32, d)) for _ in range(n))
    def forward(self, x):
        p = self.gate(x).softmax(-1)
        top, idx = p.topk(2, -1)
        mask = F.one_hot(idx, p.shape[-1]).sum(-2)
        w = p * mask
        w = w / w.sum(-1, keepdim=True)
        y = torch.stack([e(x) for e in self.experts], -2)
        load = mask.float().mean((0, 1)).detach()
        return (w.unsqueeze(-1) * y).sum(-2), (load * p.mean((0, 1))).sum() * p.shape[-1]
y, aux = MoE()(torch.randn(2, 5, 16))
(y.pow(2).mean() + 0.01 * aux).backward()

# %% padding and causal masks of torch's layers
enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, enable_nested_tensor=False)
ids = torch.randint(0, 20, (3, 7))
emb = nn.Embedding(20, 16, padding_idx=0)
causal = torch.ones(7, 7, dtype=torch.bool).triu(1)
h = enc(emb(ids), mask=causal, src_key_padding_mask=ids == 0)
keep = (ids != 0).unsqueeze(-1)
pooled = (h * keep).sum(1) / keep.sum(1).clamp(min=1)
pooled.sum().backward()

# %% statements whose results nobody needs
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))
model(torch.randn(1, 8))
x = torch.randn(4, 8)
x.requires_grad_(True)
out = model(x)
loss = out.logsumexp(1).mean()
loss.item()
loss.backward()
x.grad.clamp_(-1, 1)
torch.manual_seed(0)
nn.init.zeros_(model[2].bias)
F.relu(out, inplace=True)
out.shape

# %% angular margin with normalized columns
class ArcFace(nn.Module):
    def __init__(self, d=16, n=10, s=30.0, m=0.5):
        super().__init__()
        self.w, self.s, self.m = nn.Parameter(torch.randn(d, n)), s, m
    def forward(self, x, y):
        cos = F.normalize(x, dim=1) @ F.normalize(self.w, dim=0)
        theta = cos.clamp(-1 + 1e-7, 1 - 1e-7).acos()
        hot = F.one_hot(y, cos.shape[1]).bool()
        return F.cross_entropy(self.s * torch.where(hot, (theta + self.m).cos(), cos), y)
ArcFace()(torch.randn(6, 16), torch.randint(0, 10, (6,))).backward()

# %% two views without the diagonal
encoder = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 8))
x = torch.randn(6, 20)
z = F.normalize(encoder(torch.cat([x + 0.1 * torch.randn_like(x), x * (1 + 0.1 * torch.randn_like(x))])), dim=1)
sim = (z @ z.T / 0.5).masked_fill(torch.eye(12, dtype=torch.bool), float("-inf"))
loss = F.cross_entropy(sim, torch.arange(12).roll(6))
loss.backward()

# %% redundancy reduction over the batch
net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 8))
a, b = torch.randn(16, 20), torch.randn(16, 20)
za, zb = net(a), net(b)
za, zb = (za - za.mean(0)) / za.std(0), (zb - zb.mean(0)) / zb.std(0)
c = za.T @ zb / len(a)
on = (torch.diagonal(c) - 1).pow(2).sum()
off = c.flatten()[:-1].view(7, 9)[:, 1:].flatten().pow(2).sum()
(on + 5e-3 * off).backward()

# %% noise prediction with time and guidance
class Denoiser(nn.Module):
    def __init__(self, c=8, e=16):
        super().__init__()
        self.e, self.time, self.label = e, nn.Sequential(nn.Linear(e, e), nn.SiLU(), nn.Linear(e, 2 * c)), nn.Embedding(11, e)
        self.i, self.norm, self.o = nn.Conv2d(3, c, 3, padding=1), nn.GroupNorm(4, c), nn.Conv2d(c, 3, 3, padding=1)
    def forward(self, x, t, y):
        f = torch.exp(-math.log(10000) * torch.arange(self.e // 2) / (self.e // 2))
        a = t[:, None].float() * f
        emb = self.time(torch.cat([a.sin(), a.cos()], -1) + self.label(y))
        scale, shift = emb[:, :, None, None].chunk(2, 1)
        return self.o(F.silu(self.norm(self.i(x)) * (1 + scale) + shift))
net, bar = Denoiser(), torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)
x0, y, t = torch.randn(16, 3, 16, 16), torch.randint(0, 10, (16,)), torch.randint(0, 1000, (16,))
y = torch.where(torch.rand(16) < 0.1, 10, y)
noise = torch.randn_like(x0)
a = bar[t][:, None, None, None]
xt = a.sqrt() * x0 + (1 - a).sqrt() * noise
snr = a / (1 - a)
loss = (snr.clamp(max=5) / snr * (net(xt, t, y) - noise) ** 2).mean()
loss.backward()
with torch.no_grad():
    cond, free = net(xt, t, y), net(xt, t, torch.full_like(y, 10))
    eps = free + 3.0 * (cond - free)

# %% teacher forcing with cells
class Decoder(nn.Module):
    def __init__(self, v=20, h=16):
        super().__init__()
        self.emb, self.cell, self.out, self.h0 = nn.Embedding(v, h), nn.LSTMCell(h, h), nn.Linear(h, v), nn.Parameter(torch.zeros(1, h))
    def forward(self, ids):
        h = c = self.h0.expand(ids.size(0), -1)
        logits = []
        for t in range(ids.size(1) - 1):
            h, c = self.cell(self.emb(ids[:, t]), (h, c))
            logits.append(self.out(h))
        return torch.stack(logits, 1)
ids = torch.randint(0, 20, (4, 8))
logits = Decoder()(ids)
F.cross_entropy(logits.transpose(1, 2), ids[:, 1:]).backward()

# %% segmentation with deep supervision and dice
class Seg(nn.Module):
    def __init__(self, c=4):
        super().__init__()
        self.a, self.b, self.h1, self.h2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, 2, 1), nn.Conv2d(8, c, 1), nn.Conv2d(8, c, 1)
    def forward(self, x):
        a = F.relu(self.a(x)); b = F.relu(self.b(a))
        return self.h1(a), self.h2(b)
x, y = torch.randn(2, 3, 32, 32), torch.randint(0, 4, (2, 32, 32))
big, small = Seg()(x)
up = F.interpolate(small, size=y.shape[-2:], mode="bilinear", align_corners=False)
low = F.interpolate(y[:, None].float(), scale_factor=0.5, mode="nearest").squeeze(1).long()
p, hot = big.softmax(1), F.one_hot(y, 4).permute(0, 3, 1, 2).float()
inter = (p * hot).sum((0, 2, 3))
dice = 1 - (2 * inter + 1) / (p.sum((0, 2, 3)) + hot.sum((0, 2, 3)) + 1)
(F.cross_entropy(big, y) + 0.4 * F.cross_entropy(up, y) + F.cross_entropy(small, low) + dice.mean()).backward()
iou = torch.stack([((big.argmax(1) == c) & (y == c)).sum() / ((big.argmax(1) == c) | (y == c)).sum().clamp(min=1) for c in range(4)])

# %% fine-tuning a causal model in two ways
from transformers import LlamaConfig, LlamaForCausalLM
model = LlamaForCausalLM(LlamaConfig(vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2))
for p in model.model.embed_tokens.parameters():
    p.requires_grad = False
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)
ids = torch.randint(0, 60, (2, 10))
labels = ids.masked_fill(torch.arange(10) < 4, -100)
loss = model(input_ids=ids, labels=labels).loss
logits = model(input_ids=ids[:, :-1]).logits
again = F.cross_entropy(logits.reshape(-1, 60), ids[:, 1:].reshape(-1))
opt.zero_grad()
(loss + again).backward()
opt.step()

# %% frozen backbone in evaluation, two rates
backbone = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
head = nn.Linear(8, 5)
backbone.requires_grad_(False)
backbone.eval()
for m in backbone[0].parameters():
    m.requires_grad = True
opt = torch.optim.AdamW([{"params": head.parameters()}, {"params": backbone[0].parameters(), "lr": 1e-5}], lr=1e-3)
loss = F.cross_entropy(head(backbone(torch.randn(4, 3, 16, 16))), torch.randint(0, 5, (4,)), label_smoothing=0.1)
opt.zero_grad(); loss.backward(); opt.step()

# %% two networks of a double q
q = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
frozen = copy.deepcopy(q)
opt = torch.optim.Adam(q.parameters())
s, a, r, s2, done = torch.randn(16, 4), torch.randint(0, 2, (16, 1)), torch.randn(16), torch.randn(16, 4), torch.zeros(16)
with torch.no_grad():
    best = q(s2).argmax(1, keepdim=True)
    target = r + 0.99 * (1 - done) * frozen(s2).gather(1, best).squeeze(1)
loss = F.smooth_l1_loss(q(s).gather(1, a).squeeze(1), target)
opt.zero_grad(); loss.backward(); opt.step()
with torch.no_grad():
    for t, p in zip(frozen.parameters(), q.parameters()):
        t.data.mul_(0.995).add_(p.data, alpha=0.005)

# %% two views predict each other
net, pred = nn.Linear(12, 8), nn.Linear(8, 8)
slow = copy.deepcopy(net)
a, b = torch.randn(6, 12), torch.randn(6, 12)
def regress(p, z): return 2 - 2 * F.cosine_similarity(p, z.detach(), dim=-1)
loss = (regress(pred(net(a)), slow(b)) + regress(pred(net(b)), slow(a))).mean()
agree = F.mse_loss(net(a).softmax(-1), net(b).softmax(-1))
(loss + agree).backward()

# %% truncated sequences with a carried state
lstm, head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 20)
emb = nn.Embedding(20, 8)
opt = torch.optim.SGD([*lstm.parameters(), *head.parameters(), *emb.parameters()], lr=1.0)
text, state = torch.randint(0, 20, (4, 25)), None
for i in range(0, 24, 8):
    x, y = text[:, i:i + 8], text[:, i + 1:i + 9]
    out, state = lstm(emb(x), state)
    state = tuple(s.detach() for s in state)
    loss = F.cross_entropy(head(out).flatten(0, 1), y.flatten())
    opt.zero_grad(); loss.backward()
    nn.utils.clip_grad_norm_(lstm.parameters(), 0.25)
    opt.step()

# %% anchors of a detector, permuted
head = nn.Conv2d(16, 12, 1)
boxes = head(torch.randn(2, 16, 8, 8)).permute(0, 2, 3, 1).reshape(2, -1, 4)

# %% sharpness aware steps
net = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4))
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
x, y = torch.randn(8, 12), torch.randint(0, 4, (8,))
for _ in range(2):
    F.cross_entropy(net(x), y).backward()
    with torch.no_grad():
        norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
        moves = [p.grad * (0.05 / (norm + 1e-12)) for p in net.parameters()]
        for p, e in zip(net.parameters(), moves):
            p.add_(e)
    opt.zero_grad()
    F.cross_entropy(net(x), y).backward()
    with torch.no_grad():
        for p, e in zip(net.parameters(), moves):
            p.sub_(e)
    opt.step()
    opt.zero_grad()

# %% two views in one batch
net = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 16))
opt = torch.optim.Adam(net.parameters())
x = torch.randn(8, 12)
views = torch.cat([x + torch.randn_like(x), x + torch.randn_like(x)], dim=0)
z = F.normalize(net(views), dim=1)
sim = z @ z.T / 0.5
sim.fill_diagonal_(float("-inf"))
B = x.size(0)
labels = torch.cat([torch.arange(B) + B, torch.arange(B)])
loss = F.cross_entropy(sim, labels)
opt.zero_grad()
loss.backward()
opt.step()

# %% self-distillation across two views
f = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 16))
h = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 16))
opt = torch.optim.SGD([*f.parameters(), *h.parameters()], lr=0.05)
x = torch.randn(8, 12)
for _ in range(2):
    z1, z2 = f(x + torch.randn_like(x)), f(x + torch.randn_like(x))
    p1, p2 = h(z1), h(z2)
    loss = -(F.cosine_similarity(p1, z2.detach()).mean() + F.cosine_similarity(p2, z1.detach()).mean()) / 2
    opt.zero_grad()
    loss.backward()
    opt.step()

# %% gradients of two tasks projected
net = nn.Linear(6, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    x, parts = torch.randn(8, 6), []
    for task in range(2):
        opt.zero_grad()
        net(x)[:, task].pow(2).mean().backward()
        parts.append([p.grad.clone() for p in net.parameters()])
    opt.zero_grad()
    for p, one, other in zip(net.parameters(), *parts):
        along = (one * other).sum().clamp(max=0) / other.pow(2).sum()
        p.grad = one - along * other + other
    opt.step()
