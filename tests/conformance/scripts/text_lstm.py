"""The last letter of words, with the states of an LSTM made by hand."""

import numpy as np
import torch
from torch import nn, optim
from torch.autograd import Variable

dtype = torch.FloatTensor
torch.manual_seed(1)
letters = list("abcdefghijklmnopqrstuvwxyz")
word_dict = {c: i for i, c in enumerate(letters)}
number_dict = dict(enumerate(letters))
n_class, n_step, n_hidden = len(letters), 3, 16
seq_data = ["make", "need", "coal", "word", "love", "hate", "live", "home"]


def make_batch(seq_data):
    input_batch, target_batch = [], []
    for seq in seq_data:
        input_batch.append(np.eye(n_class)[[word_dict[c] for c in seq[:-1]]])
        target_batch.append(word_dict[seq[-1]])
    inputs = Variable(torch.FloatTensor(np.array(input_batch)))
    return inputs, Variable(torch.LongTensor(target_batch))


class TextLSTM(nn.Module):
    def __init__(self):
        super(TextLSTM, self).__init__()
        self.lstm = nn.LSTM(input_size=n_class, hidden_size=n_hidden)
        self.W = nn.Parameter(torch.randn([n_hidden, n_class]).type(dtype))
        self.b = nn.Parameter(torch.randn([n_class]).type(dtype))

    def forward(self, X):
        input = X.transpose(0, 1)
        hidden_state = Variable(torch.zeros(1, len(X), n_hidden))
        cell_state = Variable(torch.zeros(1, len(X), n_hidden))
        outputs, (_, _) = self.lstm(input, (hidden_state, cell_state))
        return torch.mm(outputs[-1], self.W) + self.b


input_batch, target_batch = make_batch(seq_data)
model = TextLSTM()
criterion = nn.CrossEntropyLoss()
optimizer = optim.Adam(model.parameters(), lr=0.05)
for epoch in range(40):
    output = model(input_batch)
    loss = criterion(output, target_batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (epoch + 1) % 10 == 0:
        print("Epoch:", "%04d" % (epoch + 1), "cost =", f"{loss.item():.6f}")
predict = model(input_batch).data.max(1, keepdim=True)[1]
inputs = [word[:3] for word in seq_data]
print(inputs, "->", [number_dict[n.item()] for n in predict.squeeze()])
