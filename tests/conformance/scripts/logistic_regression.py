"""Two classes, a DataLoader, and the accuracy."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
n_data = torch.ones(60, 2)
x = torch.cat((torch.normal(2 * n_data, 1), torch.normal(-2 * n_data, 1)), 0).type(
    torch.FloatTensor
)
y = torch.cat((torch.zeros(60), torch.ones(60)), 0).type(torch.LongTensor)
loader = DataLoader(TensorDataset(x, y), batch_size=24, shuffle=True)


class Net(nn.Module):
    def __init__(self, n_feature, n_hidden, n_output):
        super(Net, self).__init__()
        self.hidden = nn.Linear(n_feature, n_hidden)
        self.out = nn.Linear(n_hidden, n_output)

    def forward(self, x):
        return self.out(F.relu(self.hidden(x)))


net = Net(2, 10, 2)
print(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
loss_func = nn.CrossEntropyLoss()
for epoch in range(3):
    running_loss, correct = 0.0, 0
    for batch_x, batch_y in loader:
        out = net(batch_x)
        loss = loss_func(out, batch_y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running_loss += loss.item() * batch_x.size(0)
        prediction = torch.max(out, 1)[1]
        correct += (prediction == batch_y).sum().item()
    print(
        f"Epoch {epoch}: loss {running_loss / len(y):.4f}, acc {correct / len(y):.3f}"
    )
pred_y = torch.max(net(x), 1)[1].data.numpy()
print(
    "accuracy", float((pred_y == y.data.numpy()).astype(int).sum()) / float(y.size(0))
)
