"""Programs whose memory is compared: models as they are trained and run.

Each is a function without arguments, run in a recording and on the CPU.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def train(model, data, loss_of, optimizer, n_steps=2):
    for _ in range(n_steps):
        loss_of(model, *data).backward()
        optimizer.step()
        optimizer.zero_grad()


def make_gpt2(n_layer):
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=n_layer)), torch.randint(
        0, 50257, (2, 64)
    )


def gpt2_forward():
    model, ids = make_gpt2(12)
    model.eval()
    with torch.no_grad():
        return model(ids).logits.shape


def gpt2_forward_with_gradients():
    model, ids = make_gpt2(4)
    return model(ids, labels=ids).loss


def gpt2_training():
    model, ids = make_gpt2(12)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, (ids,), lambda m, x: m(x, labels=x).loss, optimizer)


class Block(nn.Module):
    def __init__(self, n_in, n_out, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU(inplace=True)
        self.down = None
        if stride > 1 or n_in != n_out:
            conv = nn.Conv2d(n_in, n_out, 1, stride, bias=False)
            self.down = nn.Sequential(conv, nn.BatchNorm2d(n_out))

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x if self.down is None else self.down(x)
        return self.relu(y)


def make_resnet():
    widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    blocks = [b for i, o, s in widths for b in (Block(i, o, s), Block(o, o))]
    stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
    return nn.Sequential(
        *(stem, nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)),
        *(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)),
    )


def resnet_training():
    model, x, y = make_resnet(), torch.randn(4, 3, 96, 96), torch.randint(0, 1000, (4,))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    train(model, (x, y), lambda m, x, y: F.cross_entropy(m(x), y), optimizer)


def double(n_in, n_out):
    parts = [
        (nn.Conv2d(i, n_out, 3, padding=1), nn.GroupNorm(8, n_out), nn.SiLU())
        for i in (n_in, n_out)
    ]
    return nn.Sequential(*parts[0], *parts[1])


class UNet(nn.Module):
    def __init__(self, widths=(32, 64, 128)):
        super().__init__()
        pairs = zip((3, *widths), widths, strict=False)
        self.downs = nn.ModuleList(double(i, o) for i, o in pairs)
        self.mid = double(widths[-1], widths[-1] * 2)
        ups = [(2 * width, width) for width in reversed(widths)]
        self.ups = nn.ModuleList(nn.ConvTranspose2d(i, o, 2, 2) for i, o in ups)
        self.joins = nn.ModuleList(double(i, o) for i, o in ups)
        self.out = nn.Conv2d(widths[0], 3, 1)

    def forward(self, x):
        skips = []
        for down in self.downs:
            x = down(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.mid(x)
        for up, join in zip(self.ups, self.joins, strict=True):
            x = join(torch.cat([up(x), skips.pop()], 1))
        return self.out(x)


def unet_training():
    model, x = UNet(), torch.randn(2, 3, 64, 64)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, (x,), lambda m, x: F.mse_loss(m(x), x), optimizer)


def transformer_training():
    model = nn.Transformer(128, 4, 2, 2, 256, batch_first=True)
    x = torch.randn(2, 32, 128)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, (x, x), lambda m, s, t: m(s, t).square().mean(), optimizer)


def t5_training():
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4}
    config = T5Config(**sizes, vocab_size=1000, decoder_start_token_id=0)
    model, ids = T5ForConditionalGeneration(config), torch.randint(0, 1000, (2, 32))
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, (ids,), lambda m, x: m(input_ids=x, labels=x).loss, optimizer)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 128)
        self.lstm = nn.LSTM(128, 128, 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(256, 5)

    def forward(self, x):
        return self.out(self.lstm(self.embed(x))[0][:, -1])


def lstm_training():
    model, x, y = (
        Classifier(),
        torch.randint(0, 1000, (4, 30)),
        torch.randint(0, 5, (4,)),
    )
    optimizer = torch.optim.Adam(model.parameters())
    train(model, (x, y), lambda m, x, y: F.cross_entropy(m(x), y), optimizer)


def gru_training():
    model, x = nn.GRU(64, 64, 1), torch.randn(20, 4, 64)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, (x,), lambda m, x: m(x)[0].square().mean(), optimizer)


def mixtral_training():
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = MixtralConfig(**sizes, **heads, num_local_experts=4, vocab_size=500)
    model, ids = MixtralForCausalLM(config), torch.randint(0, 500, (2, 32))
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, (ids,), lambda m, x: m(x, labels=x).loss, optimizer)


def checkpointed(*, use_reentrant):
    layers = nn.ModuleList(
        nn.TransformerEncoderLayer(128, 4, 512, batch_first=True) for _ in range(4)
    )
    optimizer = torch.optim.AdamW(layers.parameters())
    x = torch.randn(4, 64, 128, requires_grad=use_reentrant)
    for _ in range(2):
        y = x
        for layer in layers:
            y = checkpoint(layer, y, use_reentrant=use_reentrant)
        y.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def checkpointing():
    checkpointed(use_reentrant=False)


def checkpointing_reentrant():
    checkpointed(use_reentrant=True)


def accumulation():
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        for _ in range(4):
            (model(torch.randn(4, 32, 128)).square().mean() / 4).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def gan():
    g = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 784), nn.Tanh())
    d = nn.Sequential(nn.Linear(784, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))
    of_g, of_d = (torch.optim.Adam(model.parameters()) for model in (g, d))
    for _ in range(2):
        real, fake = torch.randn(8, 784), g(torch.randn(8, 16))
        loss = F.softplus(-d(real)).mean() + F.softplus(d(fake.detach())).mean()
        of_d.zero_grad()
        loss.backward()
        of_d.step()
        loss = F.softplus(-d(fake)).mean()
        of_g.zero_grad()
        loss.backward()
        of_g.step()


def make_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, vocab_size=1000)).eval()


def kv_cache():
    model, ids, cache = make_llama(), torch.randint(0, 1000, (1, 16)), None
    with torch.no_grad():
        for _ in range(8):
            out = model(ids, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            ids = out.logits[:, -1:].argmax(-1)


def generation():
    model, ids = make_llama(), torch.randint(0, 1000, (1, 16))
    limits = {"max_new_tokens": 6, "eos_token_id": None, "pad_token_id": 0}
    model.generate(ids, do_sample=False, **limits)


MODELS = (
    *(gpt2_forward, gpt2_forward_with_gradients, gpt2_training, resnet_training),
    *(unet_training, transformer_training, t5_training, lstm_training, gru_training),
    *(mixtral_training, checkpointing, checkpointing_reentrant, accumulation, gan),
    *(kv_cache, generation),
)
