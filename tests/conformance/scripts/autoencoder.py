"""A variational autoencoder whose noise fills a tensor of the weights' type."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(2)


class Waves(Dataset):
    def __init__(self, n):
        self.phase = torch.rand(n) * 6.28

    def __len__(self):
        return len(self.phase)

    def __getitem__(self, index):
        return torch.sin(torch.arange(16.0) / 3 + self.phase[index]) / 2 + 0.5, index


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(16, 12)
        self.fc21, self.fc22 = nn.Linear(12, 2), nn.Linear(12, 2)
        self.fc3, self.fc4 = nn.Linear(2, 12), nn.Linear(12, 16)

    def reparameterize(self, mu, logvar):
        if not self.training:
            return mu
        std = logvar.mul(0.5).exp_()
        eps = std.data.new(std.size()).normal_()
        return eps.mul(std).add_(mu)

    def forward(self, x):
        h1 = F.relu(self.fc1(x.view(-1, 16)))
        mu, logvar = self.fc21(h1), self.fc22(h1)
        z = self.reparameterize(mu, logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 16), reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = DataLoader(Waves(40), batch_size=16, shuffle=True)
for epoch in range(3):
    train_loss = 0
    for data, _ in loader:
        optimizer.zero_grad()
        loss = loss_function(*[model(data)[0], data, *model(data)[1:]])
        loss.backward()
        train_loss += loss.data
        optimizer.step()
    print(f"====> Epoch: {epoch} Average loss: {train_loss / len(loader.dataset):.4f}")
model.eval()
with torch.no_grad():
    print(model.fc4(F.relu(model.fc3(torch.zeros(1, 2)))).numpy().round(3))
