"""A recurrent network that tells the language of a name, letter by letter."""

import random
import string

import torch
from torch import nn
from torch.autograd import Variable

random.seed(0)
torch.manual_seed(0)
all_letters = string.ascii_letters + " .,;'"
n_letters = len(all_letters)
category_lines = {"German": ["Abel", "Bauer", "Kohl"], "Italian": ["Rossi", "Bove"]}
all_categories = list(category_lines)


def line_to_tensor(line):
    tensor = torch.zeros(len(line), 1, n_letters)
    for li, letter in enumerate(line):
        tensor[li][0][all_letters.find(letter)] = 1
    return tensor


class RNN(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.i2o = nn.Linear(input_size + hidden_size, output_size)
        self.softmax = nn.LogSoftmax(dim=1)

    def forward(self, input, hidden):
        combined = torch.cat((input, hidden), 1)
        return self.softmax(self.i2o(combined)), self.i2h(combined)

    def init_hidden(self):
        return Variable(torch.zeros(1, self.hidden_size))


rnn = RNN(n_letters, 16, len(all_categories))
criterion = nn.NLLLoss()


def category_from_output(output):
    _, top_i = output.data.topk(1)
    return all_categories[top_i[0][0]]


current_loss, all_losses = 0, []
for n in range(1, 41):
    category = random.choice(all_categories)
    line = random.choice(category_lines[category])
    category_tensor = Variable(torch.LongTensor([all_categories.index(category)]))
    line_tensor = Variable(line_to_tensor(line))
    hidden = rnn.init_hidden()
    rnn.zero_grad()
    for i in range(line_tensor.size()[0]):
        output, hidden = rnn(line_tensor[i], hidden)
    loss = criterion(output, category_tensor)
    loss.backward()
    for p in rnn.parameters():
        p.data.add_(p.grad.data, alpha=-0.05)
    current_loss += loss.item()
    if n % 10 == 0:
        guess = category_from_output(output)
        print("%d %.4f %s / %s %s" % (n, loss, line, guess, guess == category))
        all_losses.append(current_loss / 10)
        current_loss = 0
print(all_losses)
