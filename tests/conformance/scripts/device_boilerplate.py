"""What stands at the top of almost every script: the device, and its names."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn, optim

parser = argparse.ArgumentParser()
parser.add_argument("--no-cuda", action="store_true")
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args([])
args.cuda = not args.no_cuda and torch.cuda.is_available()
torch.manual_seed(1)
if args.cuda:
    torch.cuda.manual_seed(1)
device = torch.device("cuda" if args.cuda else "cpu")
kwargs = {"num_workers": 1, "pin_memory": True} if args.cuda else {}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, kernel_size=5)
        self.conv2 = nn.Conv2d(4, 8, kernel_size=5)
        self.conv2_drop = nn.Dropout2d()
        self.fc1 = nn.Linear(128, 20)
        self.fc2 = nn.Linear(20, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2))
        x = F.dropout(F.relu(self.fc1(x.view(-1, 128))), training=self.training)
        return F.log_softmax(self.fc2(x), dim=1)


images, labels = torch.rand(64, 1, 28, 28), torch.arange(64) % 10
data = torch.utils.data.TensorDataset(images, labels)
train_loader = torch.utils.data.DataLoader(data, 16, shuffle=True, **kwargs)
test_loader = torch.utils.data.DataLoader(data, 32, **kwargs)
model = Net().to(device)
optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.5)


def train(epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % 2 == 0:
            done = 100.0 * batch_idx / len(train_loader)
            print(f"Train Epoch: {epoch} ({done:.0f}%)\tLoss: {loss.item():.6f}")


def test():
    model.eval()
    test_loss, correct = 0, 0
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            pred = output.max(1, keepdim=True)[1]
            correct += pred.eq(target.view_as(pred)).sum().item()
    print(f"Average loss: {test_loss / 64:.4f}, Accuracy: {correct}/64")


for epoch in range(1, args.epochs + 1):
    train(epoch)
    test()
