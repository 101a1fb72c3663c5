"""Right programs that look odd, one a cell: no rule may note one.

``import torch, torch.nn as nn, torch.nn.functional as F, math`` stands before each.
"""
# ruff: noqa: B007, B905, E501, F821, RUF059, RUF100
# fmt: off

# %% outer product
x, y = torch.randn(7), torch.randn(7)
table = x[:, None] * y
same = torch.einsum("i,j->ij", x, y)

# %% all differences
x = torch.randn(12)
order = (x.unsqueeze(1) - x.unsqueeze(0)).sign().sum(1)
ranks = (x[:, None] > x).sum(1)

# %% skewed relative attention
class SkewedAttention(nn.Module):
    def __init__(self, d, heads, longest):
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(d, 3 * d)
        self.table = nn.Parameter(torch.randn(longest, d // heads))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        relative = q @ self.table[-t:].t()
        padded = F.pad(relative, (1, 0))
        skewed = padded.view(b, self.heads, t + 1, t)[:, :, 1:]
        weights = ((q @ k.transpose(-2, -1) + skewed) / math.sqrt(d // self.heads)).softmax(-1)
        return (weights @ v).transpose(1, 2).reshape(b, t, d)

SkewedAttention(32, 4, 16)(torch.randn(2, 9, 32))

# %% window bias
side = 4
rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
places = torch.stack([rows.flatten(), columns.flatten()])
between = (places[:, :, None] - places[:, None, :]).permute(1, 2, 0) + side - 1
index = between[..., 0] * (2 * side - 1) + between[..., 1]
bias = nn.Parameter(torch.zeros((2 * side - 1) ** 2, 3))[index.view(-1)].view(side**2, side**2, 3)
scores = torch.randn(5, 3, side**2, side**2) + bias.permute(2, 0, 1)
scores.softmax(-1)

# %% contrastive pairs
encoder = nn.Linear(10, 6)
views = torch.cat([torch.randn(8, 10), torch.randn(8, 10)])
z = F.normalize(encoder(views), dim=1)
similarity = z @ z.t() / 0.1
similarity = similarity.masked_fill(torch.eye(16, dtype=torch.bool), -1e9)
target = torch.arange(16).roll(8)
F.cross_entropy(similarity, target).backward()

# %% supervised contrastive
labels = torch.randint(0, 3, (16,))
z = F.normalize(nn.Linear(5, 6)(torch.randn(16, 5)), dim=1)
logits = z @ z.t() / 0.07
logits = logits - logits.max(1, keepdim=True)[0].detach()
same = (labels.view(-1, 1) == labels).float() - torch.eye(16)
log_prob = logits - logits.exp().sum(1, keepdim=True).log()
loss = -((same * log_prob).sum(1) / same.sum(1).clamp(min=1)).mean()
loss.backward()

# %% image and text
image, text = nn.Linear(9, 4)(torch.randn(6, 9)), nn.Linear(7, 4)(torch.randn(6, 7))
logits = F.normalize(image, dim=-1) @ F.normalize(text, dim=-1).t() * 14.0
target = torch.arange(6)
((F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2).backward()

# %% masks that broadcast
b, h, t = 3, 2, 5
q, k, v = (torch.randn(b, h, t, 8) for _ in range(3))
lengths = torch.tensor([5, 3, 2])
padding = torch.arange(t)[None, :] >= lengths[:, None]
causal = torch.arange(t)[:, None] < torch.arange(t)
scores = q @ k.transpose(-2, -1) / 8**0.5
scores = scores.masked_fill(padding[:, None, None, :], -1e9).masked_fill(causal, -1e9)
out = scores.softmax(-1) @ v
F.scaled_dot_product_attention(q, k, v, attn_mask=~(padding[:, None, None] | causal))

# %% distances
x, y = torch.randn(10, 3), torch.randn(10, 3)
squares = (x * x).sum(1)
own = squares[:, None] + squares - 2 * x @ x.t()
cross = (x**2).sum(1, keepdim=True) + (y**2).sum(1) - 2 * x @ y.t()
slow = ((x[:, None] - y[None]) ** 2).sum(-1).sqrt()
kernel = torch.exp(-own / own.mean())

# %% position table
longest, d = 64, 128
position = torch.arange(longest).unsqueeze(1)
rate = torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
table = torch.zeros(longest, d)
table[:, 0::2] = torch.sin(position * rate)
table[:, 1::2] = torch.cos(position * rate)
x = torch.randn(2, 10, d) + table[:10]

# %% rotary positions
def rotate(x, base=10000.0):
    b, h, t, d = x.shape
    rate = base ** (-torch.arange(0, d, 2) / d)
    angle = torch.arange(t)[:, None] * rate[None, :]
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = torch.stack([even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()], -1)
    return turned.flatten(-2)

rotate(torch.randn(2, 3, 8, 16)) @ rotate(torch.randn(2, 3, 8, 16)).transpose(-2, -1)

# %% slot attention
class Slots(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.slots = nn.Parameter(torch.randn(n, d))
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.update = nn.GRUCell(d, d)

    def forward(self, x):
        b, _, d = x.shape
        slots = self.slots.expand(b, -1, -1)
        k, v = self.k(x), self.v(x)
        for _ in range(3):
            scores = torch.bmm(k, self.q(slots).transpose(1, 2)) * d**-0.5
            weights = scores.softmax(-1) + 1e-8
            weights = weights / weights.sum(1, keepdim=True)
            updates = torch.bmm(weights.transpose(1, 2), v)
            slots = self.update(updates.reshape(-1, d), slots.reshape(-1, d)).view(b, -1, d)
        return slots

Slots(16, 4)(torch.randn(2, 20, 16))

# %% soft clusters
x = torch.randn(2, 30, 8)
assigned = nn.Linear(8, 5)(x).softmax(-1)
centers = nn.Parameter(torch.randn(5, 8))
residual = (assigned.unsqueeze(-1) * (x.unsqueeze(2) - centers)).sum(1)
pooled = assigned.transpose(1, 2) @ x
graph = torch.rand(2, 30, 30)
coarse = assigned.transpose(1, 2) @ graph @ assigned
flat = F.normalize(residual, dim=2).flatten(1)

# %% routing between capsules
votes = torch.randn(4, 12, 5, 8)
logits = torch.zeros(4, 12, 5)
for _ in range(3):
    coupling = logits.softmax(dim=2)
    total = (coupling.unsqueeze(-1) * votes).sum(1)
    square = (total**2).sum(-1, keepdim=True)
    out = square / (1 + square) * total / square.sqrt()
    logits = logits + (votes * out.unsqueeze(1)).sum(-1)

# %% straight through
logits = nn.Linear(6, 4)(torch.randn(5, 6))
soft = logits.softmax(-1)
hard = F.one_hot(soft.argmax(-1), 4).float()
chosen = hard - soft.detach() + soft
(chosen @ torch.randn(4, 3)).sum().backward()

# %% two networks against each other
generator, critic = nn.Linear(4, 8), nn.Linear(8, 1)
first = torch.optim.Adam(critic.parameters())
second = torch.optim.Adam(generator.parameters())
for _ in range(2):
    real, fake = torch.randn(6, 8), generator(torch.randn(6, 4))
    first.zero_grad()
    scores = critic(real), critic(fake.detach())
    loss = F.binary_cross_entropy_with_logits(scores[0], torch.ones(6, 1))
    loss = loss + F.binary_cross_entropy_with_logits(scores[1], torch.zeros(6, 1))
    loss.backward()
    first.step()
    second.zero_grad()
    F.binary_cross_entropy_with_logits(critic(fake), torch.ones(6, 1)).backward()
    second.step()

# %% values and targets
online, target = nn.Linear(4, 3), nn.Linear(4, 3)
optimizer = torch.optim.Adam(online.parameters())
state, action, reward, after = torch.randn(8, 4), torch.randint(0, 3, (8, 1)), torch.randn(8), torch.randn(8, 4)
with torch.no_grad():
    wanted = reward + 0.9 * target(after).max(1)[0]
loss = F.smooth_l1_loss(online(state).gather(1, action), wanted.unsqueeze(1))
optimizer.zero_grad()
loss.backward()
optimizer.step()

# %% policy and value
body, policy, value = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)
hidden = torch.relu(body(torch.randn(10, 4)))
dist = torch.distributions.Categorical(logits=policy(hidden))
action, returns = dist.sample(), torch.randn(10)
advantage = returns - value(hidden).squeeze(-1)
loss = -(dist.log_prob(action) * advantage.detach()).mean() + 0.5 * advantage.pow(2).mean() - 0.01 * dist.entropy().mean()
loss.backward()

# %% gradients of several batches
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = F.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 2, (8,))) / 2
    loss.backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()

# %% patches and back
images = torch.randn(2, 3, 16, 16)
b, c, h, w, p = *images.shape, 4
patches = images.reshape(b, c, h // p, p, w // p, p).permute(0, 2, 4, 3, 5, 1).reshape(b, h * w // p**2, p * p * c)
tokens = nn.Linear(48, 48)(patches)
back = tokens.reshape(b, h // p, w // p, p, p, c).permute(0, 5, 1, 3, 2, 4).reshape(b, c, h, w)

# %% shuffled channels and windows
x = torch.randn(2, 12, 8, 8)
b, c, h, w = x.shape
shuffled = x.view(b, 3, c // 3, h, w).transpose(1, 2).reshape(b, c, h, w)
windows = shuffled.permute(0, 2, 3, 1).view(b, h // 4, 4, w // 4, 4, c).transpose(2, 3).reshape(-1, 16, c)
bigger = F.pixel_shuffle(x, 2)
norm = nn.GroupNorm(4, 12)(x)

# %% recurrent layers
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps_first = nn.GRU(4, 6)
        self.batch_first = nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True)

    def forward(self, x):
        out, hidden = self.steps_first(x)
        last = out[-1]
        again, (h, _) = self.batch_first(out.transpose(0, 1))
        both = h.view(2, 2, x.shape[1], 5)[-1]
        return last, torch.cat([both[0], both[1]], 1), again[:, -1], again[:, 0], hidden[-1]

Recurrent()(torch.randn(7, 3, 4))

# %% frames of videos, and tokens of texts
videos = torch.randn(2, 5, 3, 8, 8)
b, t = videos.shape[:2]
features = nn.Conv2d(3, 4, 3)(videos.view(b * t, 3, 8, 8)).mean((2, 3)).view(b, t, -1)
logits = nn.Linear(4, 9)(features)
loss = F.cross_entropy(logits.view(-1, 9), torch.randint(0, 9, (b, t)).view(-1))
other = F.cross_entropy(logits.transpose(1, 2), torch.randint(0, 9, (b, t)))

# %% grouped heads
b, t, heads, groups, d = 2, 6, 8, 2, 4
q = torch.randn(b, t, heads * d).view(b, t, heads, d).transpose(1, 2)
k, v = (torch.randn(b, t, groups * d).view(b, t, groups, d).transpose(1, 2) for _ in range(2))
k = k[:, :, None].expand(b, groups, heads // groups, t, d).reshape(b, heads, t, d)
v = v.repeat_interleave(heads // groups, dim=1)
out = ((q @ k.transpose(-2, -1)) / math.sqrt(d)).softmax(-1) @ v
merged = out.transpose(1, 2).contiguous().view(b, t, heads * d)
cached = q.reshape(b, groups, heads // groups * t, d)

# %% weights of channels and of heads
x = torch.randn(3, 8, 6, 6)
weights = torch.sigmoid(nn.Linear(8, 8)(x.mean((2, 3))))
scaled = x * weights[:, :, None, None]
pixels = torch.sigmoid(nn.Conv2d(8, 1, 1)(x)) * x
branches = torch.stack([x, scaled, pixels])
chosen = (nn.Linear(8, 24)(x.mean((2, 3))).view(3, 3, 8).permute(1, 0, 2).softmax(0)[..., None, None] * branches).sum(0)

# %% linear attention
q, k, v = (torch.randn(2, 4, 10, 8) for _ in range(3))
context = k.softmax(dim=-2).transpose(-2, -1) @ v
out = q.softmax(dim=-1) @ context
x = torch.randn(2, 16, 5, 5)
keys, values = x.flatten(2).softmax(-1), x.flatten(2)
outer = torch.bmm(keys, values.transpose(1, 2))

# %% mixed layers
layers = [torch.randn(2, 7, 8) for _ in range(4)]
mix = nn.Parameter(torch.zeros(4))
mixed = (torch.stack(layers) * mix.softmax(0)[:, None, None, None]).sum(0)
summed = sum(weight * layer for weight, layer in zip(mix.softmax(0), layers))
pooled = (nn.Linear(8, 1)(mixed).softmax(1) * mixed).sum(1)
gates = nn.Linear(8, 4)(pooled).softmax(-1)
experts = torch.stack([nn.Linear(8, 3)(pooled) for _ in range(4)], 1)
out = (gates.unsqueeze(-1) * experts).sum(1)

# %% mixture of densities
x, y = torch.randn(9, 2), torch.randn(9, 1)
net = nn.Linear(2, 15)
logits, mean, log_scale = net(x).chunk(3, 1)
inside = torch.distributions.Normal(mean, log_scale.exp()).log_prob(y)
loss = -torch.logsumexp(F.log_softmax(logits, 1) + inside, 1).mean()
loss.backward()

# %% experts with a balanced load
x = torch.randn(24, 8)
probabilities = nn.Linear(8, 4)(x).softmax(-1)
weights, chosen = probabilities.topk(2, dim=-1)
weights = weights / weights.sum(-1, keepdim=True)
load = F.one_hot(chosen, 4).float().sum(1).mean(0)
balance = 4 * (load.detach() * probabilities.mean(0)).sum()
out = sum(weights[:, i, None] * nn.Linear(8, 8)(x) for i in range(2))
(out.pow(2).mean() + 0.01 * balance).backward()

# %% distilled and smoothed
teacher, student = nn.Linear(6, 4), nn.Linear(6, 4)
x, labels = torch.randn(8, 6), torch.randint(0, 4, (8,))
with torch.no_grad():
    wanted = (teacher(x) / 2).softmax(-1)
logits = student(x)
loss = F.kl_div(F.log_softmax(logits / 2, -1), wanted, reduction="batchmean") * 4
loss = loss + F.cross_entropy(logits, wanted)
smooth = torch.full((8, 4), 0.1 / 3).scatter(1, labels[:, None], 0.9)
loss = loss - (smooth * F.log_softmax(logits, 1)).sum(1).mean()
loss.backward()

# %% normalized graph
adjacency = torch.rand(12, 12)
adjacency = (adjacency + adjacency.t()) / 2 + torch.eye(12)
degree = adjacency.sum(1).rsqrt()
normalized = degree[:, None] * adjacency * degree[None, :]
columns = adjacency / adjacency.sum(0)
rows = adjacency / adjacency.sum(1, keepdim=True)
features = normalized @ torch.randn(12, 5)
centered = features - features.mean(0)
covariance = centered.t() @ centered / 11
correlation = covariance / centered.std(0)[:, None] / centered.std(0)

# %% penalty on gradients
critic = nn.Sequential(nn.Flatten(), nn.Linear(48, 1))
real, fake = torch.randn(5, 3, 4, 4), torch.randn(5, 3, 4, 4)
share = torch.rand(5, 1, 1, 1)
between = (share * real + (1 - share) * fake).requires_grad_()
(slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
penalty = ((slope.flatten(1).norm(2, 1) - 1) ** 2).mean()
(critic(fake).mean() - critic(real).mean() + 10 * penalty).backward()

# %% dropout that is meant
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randn(6, 4)), torch.randint(0, 3, (6,))).backward()
    optimizer.step()
x = torch.randn(6, 4)
with torch.no_grad():
    samples = torch.stack([model(x).softmax(-1) for _ in range(10)])
mean, spread = samples.mean(0), samples.std(0)

# %% a student and its mean
student = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
mean = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
mean.load_state_dict(student.state_dict())
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for _ in range(2):
    x = torch.randn(6, 4)
    with torch.no_grad():
        wanted = mean(x)
    loss = F.mse_loss(student(x), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for old, new in zip(mean.parameters(), student.parameters()):
            old.mul_(0.9).add_(new, alpha=0.1)

# %% a loop with a schedule
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
x, y = torch.randn(8, 4), torch.randn(8)
for _ in range(3):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x).squeeze(-1), y)
    loss.backward()
    optimizer.step()
    schedule.step()
model.eval()
with torch.no_grad():
    error = (model(x)[:, 0] - y).abs().mean()

# %% probabilities where they belong
x, y = torch.randn(8, 4), torch.rand(8, 1).round()
p = torch.sigmoid(nn.Linear(4, 1)(x))
F.binary_cross_entropy(p, y).backward()
gate = torch.sigmoid(nn.Linear(4, 4)(x)) * torch.tanh(nn.Linear(4, 4)(x))
F.cross_entropy(gate, torch.randint(0, 4, (8,))).backward()
F.nll_loss((nn.Linear(4, 3)(x).softmax(1) + 1e-9).log(), torch.randint(0, 3, (8,))).backward()
weights = nn.Linear(4, 5)(x).softmax(-1)
F.cross_entropy(weights @ torch.randn(5, 3), torch.randint(0, 3, (8,)))

# %% one token and one sample
x = torch.randn(1, 5, 8)
scores = x @ x.transpose(1, 2) / 8**0.5
keys = values = x[:, :1]
for _ in range(3):
    weights = (x[:, -1:] @ keys.transpose(1, 2)).softmax(-1)
    out = weights @ values
    keys = values = torch.cat([keys, out], 1)
best = scores.softmax(-1).squeeze(0).argmax(-1)

# %% dropout in evaluation on purpose
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
model(torch.randn(8, 4)).pow(2).mean().backward()
optimizer.step()
model.eval()
for layer in model:
    if isinstance(layer, nn.Dropout):
        layer.train()
with torch.no_grad():
    draws = torch.stack([model(torch.randn(8, 4)) for _ in range(5)]).std(0)

# %% positions of steps, and a head alone that is stepped
table, net = torch.randn(50, 1, 8), nn.GRU(8, 8)
head = nn.Linear(8, 3)
optimizer = torch.optim.SGD(head.parameters(), 0.1)
optimizer.zero_grad()
for _ in range(3):
    x = torch.randn(10, 4, 8)
    steps, _ = net(x + table[: x.size(0)])
    optimizer.zero_grad()
    F.cross_entropy(head(steps.mean(0)), torch.randint(0, 3, (4,))).backward()
    optimizer.step()
weights = torch.rand(9, 9)
weights = weights / weights.sum(0)
codes = F.normalize(torch.randn(12, 5), dim=0)
correlations = codes.T @ codes

# %% a state that is a copy
net, best = nn.Linear(4, 3), None
opt = torch.optim.SGD(net.parameters(), 0.1)
for epoch in range(3):
    F.cross_entropy(net(torch.randn(5, 4)), torch.randint(3, (5,))).backward()
    opt.step()
    opt.zero_grad()
    if epoch == 1:
        best = {name: value.clone() for name, value in net.state_dict().items()}
net.load_state_dict(best)

# %% scores and targets both by step, and both by sample
embed, cell, out = nn.Embedding(40, 12), nn.GRUCell(12, 20), nn.Linear(20, 40)
text, h, logits = torch.randint(40, (5, 18)), torch.zeros(5, 20), []
for t in range(17):
    h = cell(embed(text[:, t]), h)
    logits.append(out(h))
loss = F.cross_entropy(torch.cat(logits), text[:, 1:].T.reshape(-1))
loss = loss + F.cross_entropy(
    torch.stack(logits, 1).flatten(0, 1), text[:, 1:].flatten()
)
loss.backward()

# %% masks without softmax, after it, and of the future
s = torch.randn(2, 9, 9, requires_grad=True)
keep = torch.ones(9, 9).tril()
retained = (s * keep) @ torch.randn(2, 9, 4)
w = s.softmax(-1) * keep
w = w / w.sum(-1, keepdim=True)
v = s.masked_fill(keep == 0, float("-inf")).softmax(-1)
u = s.masked_fill(torch.ones(9, 9).tril(-1).bool(), float("-inf")).softmax(-1)

# %% a layer made once, in the first call
class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = None

    def forward(self, x):
        if self.fc is None:
            self.fc = nn.Linear(x.shape[-1], 3)
        return self.fc(x)

net = Lazy()
for _ in range(2):
    F.cross_entropy(net(torch.randn(8, 6)), torch.randint(3, (8,))).backward()

# %% several optimizers, norms of gradients, and clipping where it belongs
net = nn.Sequential(*[nn.ReLU()] * 2, nn.Linear(8, 1))
for stage in range(2):
    opt = torch.optim.Adam(net.parameters(), 0.1**stage)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(2):
        opt.zero_grad()
        F.mse_loss(net(torch.randn(4, 8)), torch.randn(4, 1)).backward()
        norm = net[-1].weight.grad.norm()
    for i in range(4):
        loss = F.mse_loss(net(torch.randn(4, 8)), torch.randn(4, 1))
        scaler.scale(loss).backward()
        if i % 2:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
for _ in range(2):  # of each task a copy
    fast = copy.deepcopy(net)
    inner = torch.optim.Adam(fast.parameters())
    inner.zero_grad()
    F.mse_loss(fast(torch.randn(4, 8)), torch.randn(4, 1)).backward()
    inner.step()

# %% an optimizer that calls a closure several times
net = nn.Linear(4, 1)
x, y = torch.randn(20, 4), torch.randn(20, 1)
opt = torch.optim.LBFGS(net.parameters(), max_iter=6)

def closure():
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    return loss

for _ in range(3):
    opt.step(closure)

# %% a loss that is computed for both, and differentiated in training
net = nn.Linear(6, 3)
opt = torch.optim.SGD(net.parameters(), 0.1)

def run(train):
    loss = F.cross_entropy(net(torch.randn(8, 6)), torch.randint(3, (8,)))
    if train:
        opt.zero_grad()
        loss.backward()
        opt.step()

for train in (True, False, True, False):
    run(train)

# %% both ends of both directions, and masks of padding
rnn = nn.GRU(6, 10, batch_first=True, bidirectional=True)
out, h = rnn(torch.randn(4, 9, 6))
ends = torch.cat([out[:, -1, :10], out[:, 0, 10:], h[-1], out[:, -1]], -1)
ids = torch.tensor([[5, 6, 7, 0, 0], [3, 4, 8, 9, 2]])
x = nn.Embedding(30, 16, padding_idx=0)(ids)
attend = nn.MultiheadAttention(16, 2, batch_first=True)
y, _ = attend(x, x, x, key_padding_mask=ids == 0)
z = x.masked_fill((ids != 0)[..., None].logical_not(), -1e9)
kept = torch.ones(2, 5)
y, _ = attend(x, x, x, key_padding_mask=kept != 1)

# %% a new optimizer for each stage, each image, and each copy that begins anew
body, head = nn.Linear(8, 16), nn.Linear(16, 3)
start = {name: value.clone() for name, value in body.state_dict().items()}
x, y = torch.randn(5, 8), torch.randint(3, (5,))
for parameters, rate in ((head.parameters(), 0.1), ([*body.parameters(), *head.parameters()], 0.01)):
    opt = torch.optim.Adam(parameters, rate)
    for epoch in range(2):
        opt.zero_grad()
        F.cross_entropy(head(body(x)), y).backward()
        opt.step()
for epoch in range(3):
    image = torch.rand(1, 3, 8, 8, requires_grad=True)
    (image - 0.5).pow(2).mean().backward()
    torch.optim.Adam([image], 0.05).step()
    body.load_state_dict(start)
    opt = torch.optim.RMSprop(body.parameters())
    opt.zero_grad()
    F.cross_entropy(head(body(x)), y).backward()
    opt.step()

# %% one layer many times, and one activation
layer, act = nn.Linear(6, 6), nn.ReLU()
deep = nn.Sequential(layer, act, nn.Linear(6, 6), act, *[act] * 2)
nn.ModuleList([layer] * 1)[0](layer(deep(torch.randn(3, 6)))).sum().backward()

# %% a judge that is not trained, and a base whose head is
judge, generator, base, head = nn.Linear(9, 2), nn.Linear(4, 9), nn.Linear(7, 30), nn.Linear(30, 3)
judge.eval()
opt = torch.optim.Adam([*generator.parameters(), *head.parameters()])
for _ in range(2):
    opt.zero_grad()
    F.mse_loss(judge(generator(torch.randn(5, 4))), torch.ones(5, 2)).backward()
    F.cross_entropy(head(base(torch.randn(5, 7))), torch.randint(3, (5,))).backward()
    opt.step()

# %% two sums, two means, and a sum with a weight
x, coder = torch.rand(16, 20), nn.Linear(20, 8)
mean, spread = coder(x).chunk(2, -1)
made = nn.Linear(4, 20)(mean + torch.randn_like(mean) * spread.exp())
kl = -0.5 * (1 + spread - mean**2 - spread.exp())
(F.binary_cross_entropy_with_logits(made, x, reduction="sum") + kl.sum()).backward(retain_graph=True)
(F.mse_loss(made, x) + kl.sum() / 16 + 1e-4 * mean.abs().sum()).backward(retain_graph=True)
(F.mse_loss(made, x) + kl.sum(1).mean() + sum(p.pow(2).sum() for p in coder.parameters())).backward()

# %% losses in a log, and balanced by their own sizes
net, log = nn.Linear(6, 4), torch.zeros(())
a, b = (part.abs().mean() for part in net(torch.randn(8, 6)).chunk(2, -1))
log += 0.1 * a.item()
(a / a.item() + b / b.detach()).backward()

# %% inputs as targets of a decoder, and of what has a gap
embed, encode, decode, out = nn.Embedding(30, 8), nn.GRU(8, 8), nn.GRU(8, 8), nn.Linear(8, 30)
seq = torch.randint(2, 30, (9, 5))
y, _ = decode(embed(torch.cat([torch.ones(1, 5).long(), seq[:-1]])), encode(embed(seq))[1])
F.cross_entropy(out(y).flatten(0, 1), seq.flatten()).backward()
masked = torch.where(torch.rand(9, 5) < 0.3, 0, seq)
F.cross_entropy(out(encode(embed(masked))[0]).flatten(0, 1), seq.flatten()).backward()
F.cross_entropy(out(encode(embed(seq[:-1]))[0]).flatten(0, 1), seq[1:].flatten()).backward()
