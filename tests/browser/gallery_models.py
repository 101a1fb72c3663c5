"""Eight models of the official sizes, each as the cell that a user would write.

``CELLS`` has the cells, ``N_PARAMETERS`` what the models are known to have: the numbers
of their reference code, by which ``test_gallery`` knows that these are those models.
"""

from types import MappingProxyType
from typing import Final

LOAD: Final = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F"

RESNET_50 = """
class Bottleneck(nn.Module):
    def __init__(self, n_in, width, stride):
        super().__init__()
        n_out = 4 * width
        self.conv1 = nn.Conv2d(n_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, n_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride > 1 or n_in != n_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)
            )

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(out + shortcut)


class ResNet(nn.Module):
    def __init__(self, depths, n_classes=1000):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        n_in = 64
        for i, depth in enumerate(depths):
            width = 64 * 2**i
            blocks = []
            for j in range(depth):
                blocks.append(Bottleneck(n_in, width, 2 if i and not j else 1))
                n_in = 4 * width
            self.add_module(f"layer{i + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(n_in, n_classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


model = ResNet([3, 4, 6, 3])
logits = model(torch.randn(8, 3, 224, 224))
"""

UNET = """
class DoubleConv(nn.Sequential):
    def __init__(self, n_in, n_out):
        super().__init__(
            nn.Conv2d(n_in, n_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(n_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(n_out, n_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(n_out),
            nn.ReLU(inplace=True),
        )


class Up(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.up = nn.ConvTranspose2d(n_in, n_in // 2, 2, stride=2)
        self.conv = DoubleConv(n_in, n_out)

    def forward(self, x, skip):
        return self.conv(torch.cat([skip, self.up(x)], dim=1))


class UNet(nn.Module):
    def __init__(self, n_channels, n_classes):
        super().__init__()
        self.inc = DoubleConv(n_channels, 64)
        self.down1 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(64, 128))
        self.down2 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(128, 256))
        self.down3 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(256, 512))
        self.down4 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(512, 1024))
        self.up1 = Up(1024, 512)
        self.up2 = Up(512, 256)
        self.up3 = Up(256, 128)
        self.up4 = Up(128, 64)
        self.outc = nn.Conv2d(64, n_classes, 1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x4 = self.down3(x3)
        x5 = self.down4(x4)
        x = self.up1(x5, x4)
        x = self.up2(x, x3)
        x = self.up3(x, x2)
        x = self.up4(x, x1)
        return self.outc(x)


unet = UNet(n_channels=3, n_classes=2)
mask = unet(torch.randn(1, 3, 512, 512))
"""

GPT_2 = """
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config())
tokens = torch.zeros(1, 1024, dtype=torch.long)
out = model(tokens, labels=tokens)
"""

LLAMA = """
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
    num_attention_heads=32, num_key_value_heads=8, vocab_size=128256)
model = LlamaForCausalLM(config)
logits = model(torch.zeros(1, 2048, dtype=torch.long)).logits
"""

MIXTRAL = """
from transformers import MixtralConfig, MixtralForCausalLM

model = MixtralForCausalLM(MixtralConfig())
logits = model(torch.zeros(1, 512, dtype=torch.long)).logits
"""

LSTM = """
class Classifier(nn.Module):
    def __init__(self, n_tokens=25_002, n_embed=100, n_hidden=256):
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, n_embed, padding_idx=1)
        self.rnn = nn.LSTM(n_embed, n_hidden, 2, bidirectional=True, dropout=0.5)
        self.fc = nn.Linear(2 * n_hidden, 1)
        self.dropout = nn.Dropout(0.5)

    def forward(self, text):
        embedded = self.dropout(self.embedding(text))
        output, (hidden, cell) = self.rnn(embedded)
        hidden = torch.cat((hidden[-2], hidden[-1]), dim=1)
        return self.fc(self.dropout(hidden)).squeeze(1)


model = Classifier()
optimizer = torch.optim.Adam(model.parameters())
text = torch.randint(25_002, (40, 64))
label = torch.ones(64)
loss = F.binary_cross_entropy_with_logits(model(text), label)
loss.backward()
optimizer.step()
"""

CELLS: Final = MappingProxyType(
    {
        "resnet-50": RESNET_50,
        "u-net": UNET,
        "gpt-2": GPT_2,
        "llama": LLAMA,
        "mixtral": MIXTRAL,
        "lstm": LSTM,
    }
)

N_PARAMETERS: Final = MappingProxyType(
    {
        "resnet-50": 25_557_032,
        "u-net": 31_037_698,
        "gpt-2": 124_439_808,
        "llama": 8_030_261_248,
        "mixtral": 46_702_792_704,
        "lstm": 4_810_857,
    }
)
