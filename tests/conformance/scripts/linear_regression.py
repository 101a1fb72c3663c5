"""A line through points, with a loop of its own for the descent."""

import torch
from torch.autograd import Variable

x_data = Variable(torch.Tensor([[1.0], [2.0], [3.0], [4.0]]))
y_data = Variable(torch.Tensor([[2.0], [4.1], [5.9], [8.2]]))
w = Variable(torch.Tensor([1.0]), requires_grad=True)
b = Variable(torch.zeros(1), requires_grad=True)
learning_rate = 0.02

for epoch in range(30):
    total = 0.0
    for x, y in zip(x_data, y_data, strict=True):
        loss = (x * w + b - y).pow(2).sum()
        loss.backward()
        w.data = w.data - learning_rate * w.grad.data
        b.data -= learning_rate * b.grad.data
        w.grad.data.zero_()
        b.grad.data.zero_()
        total += loss.item()
    if epoch % 10 == 9:
        print("progress:", epoch + 1, "loss = %.4f" % total)

print("predict (after training)", 5, (5 * w + b).data[0].item())
