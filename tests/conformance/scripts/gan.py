"""A generator against a discriminator, with labels of ones and zeros."""

import numpy as np
import torch
from torch import nn
from torch.autograd import Variable

cuda = torch.cuda.is_available()
Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor
torch.manual_seed(1)
rng = np.random.default_rng(1)
points = np.vstack([np.linspace(-1, 1, 8) for _ in range(16)])


def weights_init(m):
    if m.__class__.__name__.find("Linear") != -1:
        torch.nn.init.normal_(m.weight.data, 0.0, 0.2)
        m.bias.data.fill_(0)


G = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
D = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid())
G.apply(weights_init)
D.apply(weights_init)
adversarial_loss = nn.BCELoss()
if cuda:
    G.cuda()
    D.cuda()
    adversarial_loss.cuda()
opt_D = torch.optim.Adam(D.parameters(), lr=0.002, betas=(0.5, 0.999))
opt_G = torch.optim.Adam(G.parameters(), lr=0.002, betas=(0.5, 0.999))
valid = Variable(Tensor(16, 1).fill_(1.0), requires_grad=False)
fake = Variable(Tensor(16, 1).fill_(0.0), requires_grad=False)
for step in range(12):
    a = rng.uniform(1, 2, size=16)[:, np.newaxis]
    real = Variable(torch.from_numpy(a * points**2 + (a - 1)).float().type(Tensor))
    z = Variable(Tensor(rng.normal(0, 1, (16, 4))))
    opt_G.zero_grad()
    gen = G(z)
    g_loss = adversarial_loss(D(gen), valid)
    g_loss.backward()
    opt_G.step()
    opt_D.zero_grad()
    real_loss = adversarial_loss(D(real), valid)
    d_loss = (real_loss + adversarial_loss(D(gen.detach()), fake)) / 2
    d_loss.backward()
    opt_D.step()
    if step % 4 == 3:
        scores = D(real).mean().item(), D(gen).data.mean()
        print(f"[Batch {step}] [D loss: {d_loss.item():f}] [G loss: {g_loss.item():f}]")
        print("D(x): %.4f D(G(z)): %.4f" % scores)
