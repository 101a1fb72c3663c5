"""Wrong programs that run, one a cell; ``# wrong`` marks the line of the mistake.

``import torch, torch.nn as nn, torch.nn.functional as F, math`` stands before each.
"""
# ruff: noqa: B007, B905, E501, F821, RUF059, RUF100
# fmt: off

# %% absolute error by hand
net, x, y = nn.Linear(3, 1), torch.randn(20, 3), torch.randn(20)
pred = net(x)
loss = (pred - y).abs().mean()  # wrong
loss.backward()

# %% accuracy of a column
logits, y = nn.Linear(6, 3)(torch.randn(10, 6)), torch.randint(0, 3, (10,))
hits = (logits.argmax(1, keepdim=True) == y).sum()  # wrong

# %% error of an evaluation
model, inputs, targets = nn.Linear(3, 1), torch.randn(15, 3), torch.randn(15)
model.eval()
with torch.no_grad():
    predicted = model(inputs)
    rmse = torch.sqrt(torch.mean((predicted - targets) ** 2))  # wrong


# %% softmax over queries
class QueryAttention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(x.shape[-1])
        weights = F.softmax(scores, dim=1)  # wrong
        return weights @ self.v(x)


QueryAttention(8)(torch.randn(2, 6, 8))


# %% batch and channels merged
class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.pool = nn.Conv2d(1, 16, 5), nn.MaxPool2d(2)
        self.fc = nn.Linear(8 * 12 * 12, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv(x)))
        x = x.view(-1, 8 * 12 * 12)  # wrong
        return self.fc(x)


Digits()(torch.randn(4, 1, 28, 28))

# %% no step
model = nn.Linear(4, 3)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 3, (8,)))
    loss.backward()  # wrong

# %% optimizer before the head
backbone = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 100))
optimizer = torch.optim.SGD(backbone.parameters(), lr=0.1)  # wrong
backbone[2] = nn.Linear(8, 3)
for _ in range(2):
    optimizer.zero_grad()
    F.cross_entropy(backbone(torch.randn(5, 6)), torch.randint(0, 3, (5,))).backward()
    optimizer.step()

# %% schedule before the step
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
for _ in range(2):
    schedule.step()  # wrong
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()

# %% gradients that add up
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()  # wrong

# %% evaluated as trained
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randn(16, 4)), torch.randint(0, 2, (16,))).backward()
    optimizer.step()
with torch.no_grad():
    right = (model(torch.randn(32, 4)).argmax(1) == torch.randint(0, 2, (32,))).sum()  # wrong


# %% steps first by reshape
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(30, 8), nn.LSTM(8, 6)

    def forward(self, ids):
        batch, steps = ids.shape
        x = self.embed(ids).reshape(steps, batch, 8)  # wrong
        return self.lstm(x)[0]


Tagger()(torch.randint(0, 30, (3, 7)))

# %% heads not moved back
b, t, h, d = 2, 6, 4, 8
q, k, v = (nn.Linear(32, 32)(torch.randn(b, t, 32)).view(b, t, h, d).transpose(1, 2) for _ in range(3))
weights = (q @ k.transpose(-2, -1) / d**0.5).softmax(-1)
out = nn.Linear(32, 32)((weights @ v).contiguous().view(b, t, h * d))  # wrong

# %% sigmoid before logits
model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())  # wrong
loss = nn.BCEWithLogitsLoss()(model(torch.randn(9, 5)).squeeze(1), torch.rand(9).round())
loss.backward()

# %% rows divided by columns
scores = torch.rand(8, 8)
shares = scores / scores.sum(dim=1)  # wrong


# %% last of the batch
class Sentiment(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.LSTM(8, 6), nn.Linear(6, 2)

    def forward(self, x):
        y, _ = self.rnn(x)
        return self.out(y[:, -1, :])  # wrong


Sentiment()(torch.randn(4, 7, 8))

# %% a cut off term
encoder, decoder = nn.Linear(6, 2), nn.Linear(2, 6)
x = torch.randn(8, 6)
code = encoder(x)
sparsity = code.abs().mean()
loss = F.mse_loss(decoder(code), x) + 0.1 * sparsity.detach()  # wrong
loss.backward()


# %% layers in a dictionary
class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.heads = {"a": nn.Linear(4, 2), "b": nn.Linear(4, 3)}  # wrong

    def forward(self, x):
        x = self.first(x)
        return {name: head(x) for name, head in self.heads.items()}


Branches()(torch.randn(5, 4))

# %% logits where logarithms belong
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
loss = F.nll_loss(model(torch.randn(7, 6)), torch.randint(0, 3, (7,)))  # wrong
loss.backward()

# %% divergence of probabilities
teacher, student, x = nn.Linear(6, 4), nn.Linear(6, 4), torch.randn(8, 6)
p, q = teacher(x).softmax(-1).detach(), student(x).softmax(-1)
loss = F.kl_div(q, p, reduction="batchmean")  # wrong
loss.backward()

# %% pairs dealt out wrongly
anchors, others = torch.randn(6, 5), torch.randn(6, 5)
embedded = nn.Linear(5, 4)(torch.cat([anchors, others]))
pairs = embedded.reshape(6, 2, 4)  # wrong
distance = (pairs[:, 0] - pairs[:, 1]).norm(dim=1)

# %% weights of one score
hidden, query = torch.randn(5, 9, 8), torch.randn(5, 8)
scores = (hidden * query[:, None]).sum(-1, keepdim=True)
weights = torch.softmax(scores, dim=-1)  # wrong
context = (weights * hidden).sum(1)

# %% a loss of two shapes
pred, target = nn.Linear(4, 1)(torch.randn(12, 4)), torch.randn(12)
loss = nn.HuberLoss()(pred, target)  # wrong
loss.backward()

# %% log_softmax over the batch
scores = nn.Linear(8, 5)(torch.randn(12, 8))
logs = F.log_softmax(scores, dim=0)  # wrong
F.nll_loss(logs, torch.randint(0, 5, (12,))).backward()

# %% cosines of columns
z = F.normalize(nn.Linear(8, 5)(torch.randn(12, 8)), dim=0)  # wrong
F.cross_entropy(z @ z.T / 0.1, torch.arange(12)).backward()

# %% rows by the sums of columns
weights = torch.rand(9, 9).exp()
weights = weights / weights.sum(1)  # wrong

# %% an encoder over the batch
net, head = nn.TransformerEncoderLayer(16, 2, 32), nn.Linear(16, 3)
hidden = net(torch.randn(6, 10, 16))  # wrong
F.cross_entropy(head(hidden.mean(1)), torch.randint(0, 3, (6,))).backward()

# %% positions of samples
table, net = torch.randn(50, 1, 8), nn.GRU(8, 8, batch_first=True)
x = torch.randn(4, 10, 8)
x = x + table[: x.size(0)]  # wrong
net(x)

# %% scores by the number of keys
q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 20, 8), torch.randn(2, 4, 20, 8)
scores = q @ k.transpose(-2, -1) / k.size(-2) ** 0.5  # wrong
scores.softmax(-1) @ v

# %% weights of a mean
model, weights = nn.Linear(4, 3), torch.rand(8)
loss = weights * F.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 3, (8,)))  # wrong
loss.mean().backward()

# %% cleared before the step
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.zero_grad()
    optimizer.step()  # wrong

# %% one of two optimizers
first, second = nn.Linear(4, 4), nn.Linear(4, 1)
one, two = torch.optim.SGD(first.parameters(), 0.1), torch.optim.SGD(second.parameters(), 0.1)
for _ in range(3):
    one.zero_grad()
    two.zero_grad()
    second(first(torch.randn(8, 4))).mean().backward()  # wrong
    two.step()

# %% training after an evaluation
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    loss = model(torch.randn(8, 4)).pow(2).mean()  # wrong
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        model(torch.randn(8, 4)).pow(2).mean()


# %% dropout by a function
class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        return F.dropout(self.layer(x), 0.1)  # wrong


model, x = Dropping(), torch.randn(8, 4)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    model.train()
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        model(x).pow(2).mean()

# %% a state that is no copy
net, best = nn.Linear(4, 3), None
opt = torch.optim.SGD(net.parameters(), 0.1)
for epoch in range(3):
    F.cross_entropy(net(torch.randn(5, 4)), torch.randint(3, (5,))).backward()
    opt.step()
    opt.zero_grad()
    if epoch == 1:
        best = net.state_dict()
net.load_state_dict(best)  # wrong


# %% a layer made in forward
class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(7, 40)

    def forward(self, x):
        h = torch.relu(self.hidden(x))
        return nn.Linear(h.shape[1], 1)(h)  # wrong


net = Regressor()
opt = torch.optim.Adam(net.parameters())
for _ in range(3):
    opt.zero_grad()
    F.mse_loss(net(torch.randn(12, 7)), torch.randn(12, 1)).backward()
    opt.step()

# %% scores in the order of steps
embed, cell, out = nn.Embedding(40, 12), nn.GRUCell(12, 20), nn.Linear(20, 40)
text, h, logits = torch.randint(40, (5, 18)), torch.zeros(5, 20), []
for t in range(17):
    h = cell(embed(text[:, t]), h)
    logits.append(out(h))
loss = F.cross_entropy(torch.cat(logits), text[:, 1:].reshape(-1))  # wrong
loss.backward()

# %% targets before predictions
net = nn.Sequential(nn.Linear(9, 1), nn.Sigmoid())
p, y = net(torch.randn(22, 9)), torch.randint(2, (22, 1)).float()
F.binary_cross_entropy(y, p).backward()  # wrong

# %% the padded last step
gru, x = nn.GRU(6, 10, batch_first=True), torch.randn(4, 9, 6)
n = torch.tensor([9, 7, 4, 2])
packed = nn.utils.rnn.pack_padded_sequence(x, n, batch_first=True)
out, h = gru(packed)
out, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
y = nn.Linear(10, 3)(out[:, -1])  # wrong

# %% a mask as a factor
s = torch.randn(2, 9, 9, requires_grad=True)
w = (s * torch.ones(9, 9).tril()).softmax(-1)  # wrong

# %% a mask that hides the past
s = torch.randn(2, 9, 9, requires_grad=True)
w = s.masked_fill(torch.ones(9, 9).tril().bool(), float("-inf")).softmax(-1)  # wrong

# %% a step before backward
net = nn.Linear(8, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    loss = F.mse_loss(net(torch.randn(16, 8)), torch.randn(16, 1))
    opt.zero_grad()
    opt.step()  # wrong
    loss.backward()

# %% gradients cleared while they add up
net = nn.Linear(8, 1)
opt = torch.optim.AdamW(net.parameters())
for i in range(8):
    opt.zero_grad()  # wrong
    loss = F.mse_loss(net(torch.randn(4, 8)), torch.randn(4, 1)) / 4
    loss.backward()
    if i % 4 == 3:
        opt.step()

# %% the loss of the last step alone
cell, head = nn.GRUCell(6, 16), nn.Linear(16, 3)
x, y, h = torch.randn(5, 8, 6), torch.randint(3, (5, 8)), torch.zeros(8, 16)
for t in range(5):
    h = cell(x[t], h)
    loss = F.cross_entropy(head(h), y[t])  # wrong
loss.backward()

# %% a mask of padding that hides the tokens
ids = torch.tensor([[5, 6, 7, 0, 0], [3, 4, 8, 9, 2]])
embed = nn.Embedding(30, 16, padding_idx=0)
attend = nn.MultiheadAttention(16, 2, batch_first=True)
x = embed(ids)
y, _ = attend(x, x, x, key_padding_mask=ids != 0)  # wrong

# %% soft targets with classes as the last dimension
logits = nn.Linear(5, 6)(torch.randn(4, 12, 5))
targets = F.one_hot(torch.randint(6, (4, 12)), 6).float()
F.cross_entropy(logits, targets).backward()  # wrong

# %% gradients clipped before there are any
net = nn.Linear(8, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(2):
    opt.zero_grad()
    loss = F.mse_loss(net(torch.randn(16, 8)), torch.randn(16, 1))
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # wrong
    loss.backward()
    opt.step()

# %% gradients clipped while they are scaled
net = nn.Linear(8, 1)
opt, scaler = torch.optim.SGD(net.parameters(), 0.1), torch.amp.GradScaler("cpu")
for _ in range(2):
    opt.zero_grad()
    loss = F.mse_loss(net(torch.randn(16, 8)), torch.randn(16, 1))
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # wrong
    scaler.step(opt)
    scaler.update()

# %% an optimizer for each step
net = nn.Linear(8, 1)
for _ in range(2):
    opt = torch.optim.Adam(net.parameters())  # wrong
    opt.zero_grad()
    F.mse_loss(net(torch.randn(16, 8)), torch.randn(16, 1)).backward()
    opt.step()

# %% one layer for several
net = nn.Sequential(*[nn.Linear(8, 8), nn.ReLU()] * 3)  # wrong
net(torch.randn(2, 8)).sum().backward()

# %% an optimizer for each epoch
net = nn.Linear(6, 2)


def train_epoch(net, rate):
    opt = torch.optim.AdamW(net.parameters(), lr=rate)  # wrong
    for _ in range(2):
        opt.zero_grad()
        F.mse_loss(net(torch.randn(9, 6)), torch.randn(9, 2)).backward()
        opt.step()


for epoch in range(3):
    train_epoch(net, 1e-3)

# %% one module in a list
class Tower(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        floor = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
        self.floors = nn.ModuleList([floor] * depth)  # wrong

    def forward(self, x):
        for floor in self.floors:
            x = floor(x)
        return x


tower = Tower()
tower(torch.randn(2, 6)).sum().backward()

# %% a head that no optimizer has
body, head = nn.Linear(9, 14), nn.Linear(14, 3)  # wrong
opt = torch.optim.SGD(body.parameters(), 0.1)
for _ in range(2):
    opt.zero_grad()
    F.cross_entropy(head(body(torch.randn(4, 9)).relu()), torch.randint(3, (4,))).backward()
    opt.step()

# %% a sum beside a mean
x, coder = torch.rand(24, 30), nn.Linear(30, 8)
mean, spread = coder(x).chunk(2, -1)
code = mean + torch.randn_like(mean) * spread.exp()
loss = F.mse_loss(nn.Linear(4, 30)(code), x)
loss = loss + 0.5 * (mean**2 + spread.exp() - spread - 1).sum()  # wrong
loss.backward()

# %% a number in the loss
net = nn.Linear(7, 2)
penalty = net.weight.pow(2).sum()
loss = F.mse_loss(net(torch.randn(5, 7)), torch.randn(5, 2)) + 0.1 * penalty.item()  # wrong
loss.backward()

# %% targets that are the inputs
embed, rnn, out = nn.Embedding(20, 6), nn.LSTM(6, 8, 2, batch_first=True), nn.Linear(8, 20)
text = torch.randint(20, (60,))
x = torch.stack([text[i : i + 9] for i in (3, 17, 30)])
y = torch.stack([text[i : i + 9] for i in (3, 17, 30)])
loss = F.cross_entropy(out(rnn(embed(x))[0]).view(-1, 20), y.view(-1))  # wrong
loss.backward()

# %% targets in another order
rnn, out = nn.GRU(5, 8), nn.Linear(8, 3)
states, _ = rnn(torch.randn(4, 7, 5).transpose(0, 1))
labels = torch.randint(3, (4, 7))
F.cross_entropy(out(states).reshape(-1, 3), labels.reshape(-1)).backward()  # wrong
