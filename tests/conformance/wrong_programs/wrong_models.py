"""Wrong programs of fine-tuning, generation and detection, as ``wrong_but_running``.

``import torch, torch.nn as nn, torch.nn.functional as F, math, copy`` stands before each.
"""
# ruff: noqa: B905, E402, E501, F821, I001, PLW2901, RUF100
# fmt: off

# %% dpo without shift
class LM(nn.Module):
    def __init__(self, v=50, d=16):
        super().__init__()
        self.emb = nn.Embedding(v, d)
        self.layer = nn.TransformerEncoderLayer(d, 2, 32, batch_first=True)
        self.head = nn.Linear(d, v)
    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.layer(self.emb(ids), src_mask=mask, is_causal=True))
def logps(logits, labels, mask):
    lp = logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)  # wrong
    return (lp * mask).sum(-1)
policy, ref = LM(), LM()
ref.load_state_dict(policy.state_dict())
ref.requires_grad_(False)
opt = torch.optim.AdamW(policy.parameters(), lr=1e-5)
chosen, rejected = torch.randint(0, 50, (4, 12)), torch.randint(0, 50, (4, 12))
mask = torch.ones(4, 12)
pc, pr = logps(policy(chosen), chosen, mask), logps(policy(rejected), rejected, mask)
with torch.no_grad():
    rc, rr = logps(ref(chosen), chosen, mask), logps(ref(rejected), rejected, mask)
loss = -F.logsigmoid(0.1 * ((pc - rc) - (pr - rr))).mean()
opt.zero_grad()
loss.backward()
opt.step()

# %% reference is the policy
policy = nn.Sequential(nn.Embedding(40, 16), nn.Linear(16, 40))
ref = policy  # wrong
for p in ref.parameters():
    p.requires_grad_(ref is policy)
opt = torch.optim.AdamW(policy.parameters(), lr=1e-5)
ids = torch.randint(0, 40, (4, 10))
for _ in range(2):
    logp = policy(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    with torch.no_grad():
        ref_logp = ref(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    kl = (logp - ref_logp).mean()
    reward = torch.randn(4, 1)
    loss = -(logp * reward).mean() + 0.1 * kl
    opt.zero_grad()
    loss.backward()
    opt.step()

# %% average of weights that is bound anew
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
ema = copy.deepcopy(model).requires_grad_(False)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = F.mse_loss(model(torch.randn(4, 8)), torch.randn(4, 1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for e, p in zip(ema.parameters(), model.parameters()):
            e = 0.99 * e + 0.01 * p  # wrong
out = ema(torch.randn(2, 8))

# %% average of weights that shares memory
model = nn.Linear(8, 1)
shadow = [p.detach() for p in model.parameters()]  # wrong
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = F.mse_loss(model(torch.randn(4, 8)), torch.randn(4, 1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    for s, p in zip(shadow, model.parameters()):
        s.mul_(0.99).add_(p.detach(), alpha=0.01)

# %% zeroed inside of the accumulation
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))
opt = torch.optim.AdamW(model.parameters())
accumulation = 4
for step in range(8):
    opt.zero_grad()  # wrong
    x, y = torch.randn(4, 8), torch.randint(0, 3, (4,))
    loss = F.cross_entropy(model(x), y) / accumulation
    loss.backward()
    if (step + 1) % accumulation == 0:
        opt.step()
        opt.zero_grad()

# %% scaled loss and a plain step
model = nn.Linear(8, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for _ in range(2):
    x, y = torch.randn(4, 8), torch.randint(0, 3, (4,))
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    opt.step()  # wrong

# %% scheduler of an optimizer that was replaced
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=10)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)  # wrong
for _ in range(3):
    loss = F.cross_entropy(model(torch.randn(4, 8)), torch.randint(0, 3, (4,)))
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()

# %% causal flag with a cache
class Attn(nn.Module):
    def __init__(self, d=32, h=4):
        super().__init__()
        self.h = h
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
    def forward(self, x, cache=None):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.h, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # wrong
        return self.o(y.transpose(1, 2).reshape(b, t, d)), (k, v)
attn = Attn().eval()
with torch.no_grad():
    y, cache = attn(torch.randn(2, 6, 32))
    for _ in range(3):
        y, cache = attn(torch.randn(2, 1, 32), cache)

# %% mask after the softmax
class Causal(nn.Module):
    def __init__(self, d=16, n=8):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.register_buffer("tril", torch.tril(torch.ones(n, n)))
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        w = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        w = w.softmax(-1) * self.tril  # wrong
        return w @ v
Causal()(torch.randn(3, 8, 16)).sum().backward()

# %% lower triangle of what may not be attended
attn = nn.MultiheadAttention(16, 4, batch_first=True)
x = torch.randn(2, 8, 16)
mask = torch.tril(torch.ones(8, 8)).bool()  # wrong
y, _ = attn(x, x, x, attn_mask=mask, need_weights=False)
y.mean().backward()

# %% masked scores are dropped
class Head(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
    def forward(self, x, mask):
        scores = self.q(x) @ self.k(x).mT / math.sqrt(x.size(-1))
        scores.masked_fill(mask[:, None] == 0, -1e9)  # wrong
        return scores.softmax(-1) @ self.v(x)
Head(16)(torch.randn(2, 5, 16), torch.ones(2, 5)).sum().backward()

# %% normalized over the batch
class CLIP(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(48, 16), nn.Linear(32, 16)
        self.scale = nn.Parameter(torch.tensor(2.6))
    def forward(self, a, b):
        a = F.normalize(self.image(a), dim=0)  # wrong
        b = F.normalize(self.text(b), dim=1)
        return self.scale.exp() * a @ b.T
logits = CLIP()(torch.randn(12, 48), torch.randn(12, 32))
labels = torch.arange(12)
loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
loss.backward()

# %% each sample is its own nearest neighbor
encoder = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 8))
x = torch.randn(6, 20)
v1, v2 = x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)
z = F.normalize(encoder(torch.cat([v1, v2])), dim=1)
sim = z @ z.T / 0.5
target = torch.cat([torch.arange(6, 12), torch.arange(6)])
loss = F.cross_entropy(sim, target)  # wrong
loss.backward()

# %% another noise as the target
alpha_bar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)
net = nn.Conv2d(3, 3, 3, padding=1)
opt = torch.optim.Adam(net.parameters())
for _ in range(2):
    x0 = torch.randn(8, 3, 16, 16)
    a = alpha_bar[torch.randint(0, 1000, (8,))].view(-1, 1, 1, 1)
    noise = torch.randn_like(x0)
    xt = a.sqrt() * x0 + (1 - a).sqrt() * noise
    loss = F.mse_loss(net(xt), torch.randn_like(x0))  # wrong
    opt.zero_grad()
    loss.backward()
    opt.step()

# %% cell without its state
class Reader(nn.Module):
    def __init__(self, d=8, h=16):
        super().__init__()
        self.cell, self.out = nn.GRUCell(d, h), nn.Linear(h, 2)
    def forward(self, x):
        h = None
        for t in range(x.size(1)):
            h = self.cell(x[:, t])  # wrong
        return self.out(h)
F.cross_entropy(Reader()(torch.randn(4, 7, 8)), torch.randint(0, 2, (4,))).backward()

# %% classes interpolated
net = nn.Conv2d(3, 5, 3, padding=1, stride=2)
image, mask = torch.randn(2, 3, 32, 32), torch.randint(0, 5, (2, 32, 32))
logits = net(image)
small = F.interpolate(mask[:, None].float(), size=logits.shape[-2:], mode="bilinear")  # wrong
loss = F.cross_entropy(logits, small.squeeze(1).long())
loss.backward()

# %% largest of one channel
net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))
image, mask = torch.randn(2, 3, 16, 16), torch.randint(0, 2, (2, 16, 16))
with torch.no_grad():
    pred = torch.sigmoid(net(image)).argmax(1)  # wrong
    intersection = ((pred == 1) & (mask == 1)).sum()
    union = ((pred == 1) | (mask == 1)).sum()
    iou = intersection / union.clamp(min=1)

# %% ratio of a probability with itself
policy = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3))
opt = torch.optim.Adam(policy.parameters())
obs, act, adv = torch.randn(16, 6), torch.randint(0, 3, (16,)), torch.randn(16)
for _ in range(3):
    logp = torch.distributions.Categorical(logits=policy(obs)).log_prob(act)
    old_logp = logp
    ratio = torch.exp(logp - old_logp)  # wrong
    loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()

# %% shifted twice
from transformers import LlamaConfig, LlamaForCausalLM
model = LlamaForCausalLM(LlamaConfig(vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4))
opt = torch.optim.AdamW(model.parameters(), lr=1e-5)
ids = torch.randint(0, 60, (2, 10))
out = model(input_ids=ids[:, :-1], labels=ids[:, 1:])  # wrong
opt.zero_grad()
out.loss.backward()
opt.step()

# %% an attribute freezes nothing
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(8, 5)
    def forward(self, x):
        return self.head(self.backbone(x))
model = Classifier()
model.backbone.requires_grad = False  # wrong
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
loss = F.cross_entropy(model(torch.randn(4, 3, 16, 16)), torch.randint(0, 5, (4,)))
opt.zero_grad()
loss.backward()
opt.step()

# %% target that is differentiated
q = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
opt = torch.optim.Adam(q.parameters())
s, a, r, s2 = torch.randn(16, 4), torch.randint(0, 2, (16, 1)), torch.randn(16), torch.randn(16, 4)
value = q(s).gather(1, a).squeeze(1)
target = r + 0.99 * q(s2).max(1).values  # wrong
loss = F.smooth_l1_loss(value, target)
opt.zero_grad()
loss.backward()
opt.step()

# %% eval is not called
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = F.cross_entropy(model(torch.randn(4, 8)), torch.randint(0, 2, (4,)))
    opt.zero_grad()
    loss.backward()
    opt.step()
model.eval  # wrong
with torch.no_grad():
    accuracy = (model(torch.randn(10, 8)).argmax(1) == torch.randint(0, 2, (10,))).float().mean()

# %% target of the network that is trained
q = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
opt = torch.optim.Adam(q.parameters())
s, s2 = torch.randn(32, 4), torch.randn(32, 4)
a = torch.randint(0, 2, (32, 1))
r, done = torch.randn(32), torch.zeros(32)
value = q(s).gather(1, a).squeeze(1)
target = r + 0.99 * (1 - done) * q(s2).max(1).values  # wrong
loss = F.smooth_l1_loss(value, target)
opt.zero_grad()
loss.backward()
opt.step()

# %% cosine over the batch
net = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 16))
opt = torch.optim.Adam(net.parameters())
a, b = torch.randn(8, 12), torch.randn(8, 12)
za, zb = net(a), net(b)
sim = F.cosine_similarity(za, zb, dim=0)  # wrong
loss = (1 - sim).mean()
opt.zero_grad()
loss.backward()
opt.step()

# %% temperature after the softmax
emb, lm = nn.Embedding(50, 32), nn.Linear(32, 50)
ids = torch.randint(0, 50, (2, 6))
temperature = 0.7
with torch.no_grad():
    for _ in range(3):
        logits = lm(emb(ids))[:, -1]
        probs = F.softmax(logits, dim=-1) / temperature  # wrong
        nxt = torch.multinomial(probs, 1)
        ids = torch.cat([ids, nxt], dim=1)

# %% require_grad
backbone = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
head = nn.Linear(32, 4)
for p in backbone.parameters():
    p.require_grad = False  # wrong
opt = torch.optim.SGD(head.parameters(), lr=0.1)
x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
loss = F.cross_entropy(head(backbone(x)), y)
opt.zero_grad()
loss.backward()
opt.step()

# %% steps the other optimizer
G = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
D = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))
opt_g = torch.optim.Adam(G.parameters())
opt_d = torch.optim.Adam(D.parameters())
real = torch.randn(16, 2)
for _ in range(3):
    fake = G(torch.randn(16, 8))
    d_loss = F.softplus(-D(real)).mean() + F.softplus(D(fake.detach())).mean()
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
    g_loss = F.softplus(-D(fake)).mean()
    opt_g.zero_grad()
    g_loss.backward()
    opt_d.step()  # wrong
