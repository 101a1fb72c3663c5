"""A decoder that looks back at each step, and keeps the weights that it gave."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(3)
sentences = ["ich will ein bier P", "S i want a beer", "i want a beer E"]
words = sorted(set(" ".join(sentences).split()))
word_dict = {w: i for i, w in enumerate(words)}
number_dict = dict(enumerate(words))
n_class, n_hidden = len(words), 12


def one_hot(sentence):
    return [np.eye(n_class)[[word_dict[n] for n in sentence.split()]]]


enc_inputs = torch.FloatTensor(np.array(one_hot(sentences[0])))
dec_inputs = torch.FloatTensor(np.array(one_hot(sentences[1])))
targets = torch.LongTensor([[word_dict[n] for n in sentences[2].split()]])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc_cell = nn.RNN(input_size=n_class, hidden_size=n_hidden)
        self.dec_cell = nn.RNN(input_size=n_class, hidden_size=n_hidden)
        self.attn = nn.Linear(n_hidden, n_hidden)
        self.out = nn.Linear(n_hidden * 2, n_class)

    def forward(self, enc_inputs, hidden, dec_inputs):
        enc_inputs = enc_inputs.transpose(0, 1)
        dec_inputs = dec_inputs.transpose(0, 1)
        enc_outputs, hidden = self.enc_cell(enc_inputs, hidden)
        trained_attn, n_step = [], len(dec_inputs)
        model = torch.empty([n_step, 1, n_class])
        for i in range(n_step):
            dec_output, hidden = self.dec_cell(dec_inputs[i].unsqueeze(0), hidden)
            attn_weights = self.get_att_weight(dec_output, enc_outputs)
            trained_attn.append(attn_weights.squeeze().data.numpy())
            context = attn_weights.bmm(enc_outputs.transpose(0, 1)).squeeze(1)
            model[i] = self.out(torch.cat((dec_output.squeeze(0), context), 1))
        return model.transpose(0, 1).squeeze(0), trained_attn

    def get_att_weight(self, dec_output, enc_outputs):
        n_step = len(enc_outputs)
        attn_scores = torch.zeros(n_step)
        for i in range(n_step):
            score = self.attn(enc_outputs[i])
            attn_scores[i] = torch.dot(dec_output.view(-1), score.view(-1))
        return F.softmax(attn_scores, dim=0).view(1, 1, -1)


hidden = torch.zeros(1, 1, n_hidden)
model = Attention()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(10):
    optimizer.zero_grad()
    output, _ = model(enc_inputs, hidden, dec_inputs)
    loss = criterion(output, targets.squeeze(0))
    loss.backward()
    optimizer.step()
    if (epoch + 1) % 5 == 0:
        print("Epoch:", "%04d" % (epoch + 1), "cost =", f"{loss:.6f}")
predict, trained_attn = model(enc_inputs, hidden, dec_inputs)
predict = predict.data.max(1, keepdim=True)[1]
print(sentences[0], "->", [number_dict[n.item()] for n in predict.squeeze()])
print(np.array(trained_attn).shape, np.round(trained_attn[0], 3))
