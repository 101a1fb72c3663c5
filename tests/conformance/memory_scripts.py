"""Programs whose memory is compared, written after it was counted: not tuned to."""

import copy
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from tests.conformance.memory_models import train
from tests.conformance.memory_traps import make_mlp


def variational_autoencoder():
    encoder = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 16))
    decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 784))
    model = nn.ModuleList([encoder, decoder])
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(2):
        x = torch.rand(16, 784)
        mean, log_variance = encoder(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        loss = F.binary_cross_entropy(decoder(z).sigmoid(), x, reduction="sum")
        loss += -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Patches(nn.Module):
    """A small vision transformer."""

    def __init__(self):
        super().__init__()
        self.cut = nn.Conv2d(3, 64, 8, 8)
        self.token = nn.Parameter(torch.zeros(1, 1, 64))
        self.places = nn.Parameter(torch.randn(1, 17, 64) * 0.02)
        layer = nn.TransformerEncoderLayer(
            64, 4, 128, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = self.cut(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.layers(x)[:, 0])


def vision_transformer_with_average():
    model = Patches()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for _ in range(2):
        x, y = torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(new, 0.01)
    return average


def deep_q_learning():
    model, target = make_mlp(), make_mlp()
    target.load_state_dict(model.state_dict())
    optimizer = torch.optim.RMSprop(model.parameters())
    replays = [(torch.randn(64), torch.randn(64), i % 10, 1.0) for i in range(20)]
    for _ in range(2):
        states, following, actions, rewards = zip(*replays[:8], strict=True)
        values = model(torch.stack(states)).gather(1, torch.tensor(actions)[:, None])
        with torch.no_grad():
            best = target(torch.stack(following)).max(1).values
        wanted = torch.tensor(rewards) + 0.99 * best
        loss = F.smooth_l1_loss(values.squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()


def translation_with_attention():
    embed, encoder, cell = nn.Embedding(50, 32), nn.GRU(32, 32), nn.GRUCell(64, 32)
    head = nn.Linear(32, 50)
    model = nn.ModuleList([embed, encoder, cell, head])
    optimizer = torch.optim.Adagrad(model.parameters())
    source, target = torch.randint(0, 50, (7, 4)), torch.randint(0, 50, (5, 4))
    for _ in range(2):
        memory, hidden = encoder(embed(source))
        state, loss = hidden[0], 0
        for word, following in pairwise(target):
            weights = (memory * state).sum(-1).softmax(0)
            seen = (weights[..., None] * memory).sum(0)
            state = cell(torch.cat([embed(word), seen], -1), state)
            loss = loss + F.cross_entropy(head(state), following)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def message_passing():
    first, second = nn.Linear(16, 32), nn.Linear(32, 7)
    parameters = [*first.parameters(), *second.parameters()]
    optimizer = torch.optim.Adam(parameters, 0.01, weight_decay=5e-4)
    x, edges = torch.randn(50, 16), torch.randint(0, 50, (2, 200))
    labels = torch.randint(0, 7, (50,))

    def gather(x):
        return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])

    for _ in range(2):
        hidden = F.dropout(gather(first(x)).relu(), 0.5)
        loss = F.nll_loss(gather(second(hidden)).log_softmax(-1)[:20], labels[:20])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class LowRank(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 4, bias=False)
        self.up = nn.Linear(4, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def low_rank_tuning():
    model = make_mlp()
    model[0], model[2] = LowRank(model[0]), LowRank(model[2])
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    x, y = torch.randn(8, 64), torch.randint(0, 10, (8,))
    train(model, (x, y), lambda m, x, y: F.cross_entropy(m(x), y), optimizer)


def diffusion():
    model = nn.Sequential(nn.Linear(66, 64), nn.SiLU(), nn.Linear(64, 64))
    optimizer = torch.optim.NAdam(model.parameters())
    betas = torch.linspace(1e-4, 0.02, 100)
    kept = (1 - betas).cumprod(0)
    for _ in range(2):
        x, noise = torch.randn(16, 64), torch.randn(16, 64)
        t = torch.randint(0, 100, (16,))
        a = kept[t][:, None]
        noisy = a.sqrt() * x + (1 - a).sqrt() * noise
        times = torch.stack([t / 100, (t / 100).cos()], 1)
        loss = F.mse_loss(model(torch.cat([noisy, times], 1)), noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        x = torch.randn(4, 64)
        for step in range(3):
            times = torch.full((4, 2), step / 100)
            x = x - 0.1 * model(torch.cat([x, times], 1))


def contrastive_pairs():
    images, texts = make_mlp(), nn.EmbeddingBag(100, 10)
    scale = nn.Parameter(torch.tensor(2.6))
    parameters = [*images.parameters(), *texts.parameters(), scale]
    optimizer = torch.optim.Adamax(parameters)
    for _ in range(2):
        a = F.normalize(images(torch.randn(8, 64)), dim=-1)
        b = F.normalize(texts(torch.randint(0, 100, (8, 12))), dim=-1)
        logits, wanted = scale.exp() * a @ b.T, torch.arange(8)
        loss = F.cross_entropy(logits, wanted) + F.cross_entropy(logits.T, wanted)
        optimizer.zero_grad()
        (loss / 2).backward()
        optimizer.step()


def gradient_penalty():
    critic = make_mlp()
    optimizer = torch.optim.Adam(critic.parameters(), 1e-4, betas=(0.0, 0.9))
    for _ in range(2):
        real, fake = torch.randn(8, 64), torch.randn(8, 64)
        share = torch.rand(8, 1)
        mixed = (share * real + (1 - share) * fake).requires_grad_()
        score = critic(mixed)
        options = {"grad_outputs": torch.ones_like(score), "create_graph": True}
        (grad,) = torch.autograd.grad(score, mixed, **options)
        penalty = 10 * ((grad.norm(2, 1) - 1) ** 2).mean()
        loss = critic(fake).mean() - critic(real).mean() + penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bound):
        ctx.save_for_backward(x)
        ctx.bound = bound
        return x.clamp(-bound, bound)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= ctx.bound), None


def function_of_ones_own():
    model = make_mlp()
    optimizer = torch.optim.Rprop(model.parameters())
    x = torch.randn(8, 64)
    train(model, (x,), lambda m, x: Clipped.apply(m(x), 0.5).sum(), optimizer)


def averaged_and_saved():
    model = make_mlp()
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, nesterov=True, momentum=0.9)
    for _ in range(3):
        loss = model(torch.randn(8, 64)).logsumexp(-1).mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        average.update_parameters(model)
    saved = copy.deepcopy(model.state_dict())
    other = make_mlp()
    other.load_state_dict(saved)
    return other


def convolutional_recurrence():
    conv = nn.Conv2d(9, 32, 3, padding=1)
    optimizer = torch.optim.ASGD(conv.parameters())
    frames = torch.randn(5, 2, 1, 16, 16)
    for _ in range(2):
        hidden = cell = torch.zeros(2, 8, 16, 16)
        outputs = []
        for frame in frames:
            gates = conv(torch.cat([frame, hidden], 1)).chunk(4, 1)
            keep, take, give = (gate.sigmoid() for gate in gates[:3])
            cell = keep * cell + take * gates[3].tanh()
            hidden = give * cell.tanh()
            outputs.append(hidden.mean((1, 2, 3)))
        loss = torch.stack(outputs).var()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()


SCRIPTS = (
    *(variational_autoencoder, vision_transformer_with_average, deep_q_learning),
    *(translation_with_attention, message_passing, low_rank_tuning, diffusion),
    *(contrastive_pairs, gradient_penalty, function_of_ones_own, averaged_and_saved),
    convolutional_recurrence,
)
