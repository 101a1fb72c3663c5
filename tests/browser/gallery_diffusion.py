"""The UNet of Stable Diffusion 1.5, after diffusers' ``UNet2DConditionModel``."""

import math

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["UNet2DConditionModel"]

N_GROUPS = 32


class ResnetBlock2D(nn.Module):
    def __init__(self, n_in, n_out, n_time):
        super().__init__()
        self.norm1 = nn.GroupNorm(N_GROUPS, n_in)
        self.conv1 = nn.Conv2d(n_in, n_out, 3, padding=1)
        self.time_emb_proj = nn.Linear(n_time, n_out)
        self.norm2 = nn.GroupNorm(N_GROUPS, n_out)
        self.dropout = nn.Dropout(0.0)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1)
        self.nonlinearity = nn.SiLU()
        self.conv_shortcut = nn.Conv2d(n_in, n_out, 1) if n_in != n_out else None

    def forward(self, x, time):
        hidden = self.conv1(self.nonlinearity(self.norm1(x)))
        hidden = hidden + self.time_emb_proj(self.nonlinearity(time))[:, :, None, None]
        hidden = self.conv2(self.dropout(self.nonlinearity(self.norm2(hidden))))
        return hidden + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class Attention(nn.Module):
    def __init__(self, width, n_context, n_heads=8):
        super().__init__()
        self.n_heads = n_heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k = nn.Linear(n_context, width, bias=False)
        self.to_v = nn.Linear(n_context, width, bias=False)
        self.to_out = nn.Sequential(nn.Linear(width, width), nn.Dropout(0.0))

    def split(self, x):
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def forward(self, x, context):
        q, k, v = self.to_q(x), self.to_k(context), self.to_v(context)
        q, k, v = self.split(q), self.split(k), self.split(v)
        hidden = F.scaled_dot_product_attention(q, k, v)
        return self.to_out(hidden.transpose(1, 2).flatten(2))


class GEGLU(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.proj = nn.Linear(n_in, 2 * n_out)

    def forward(self, x):
        hidden, gate = self.proj(x).chunk(2, dim=-1)
        return hidden * F.gelu(gate)


class BasicTransformerBlock(nn.Module):
    def __init__(self, width, n_context):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn1 = Attention(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.attn2 = Attention(width, n_context)
        self.norm3 = nn.LayerNorm(width)
        self.ff = nn.Sequential(GEGLU(width, 4 * width), nn.Linear(4 * width, width))

    def forward(self, x, context):
        hidden = self.norm1(x)
        x = x + self.attn1(hidden, hidden)
        x = x + self.attn2(self.norm2(x), context)
        return x + self.ff(self.norm3(x))


class Transformer2DModel(nn.Module):
    def __init__(self, width, n_context):
        super().__init__()
        self.norm = nn.GroupNorm(N_GROUPS, width)
        self.proj_in = nn.Conv2d(width, width, 1)
        self.transformer_blocks = nn.ModuleList(
            [BasicTransformerBlock(width, n_context)]
        )
        self.proj_out = nn.Conv2d(width, width, 1)

    def forward(self, x, context):
        hidden = self.proj_in(self.norm(x)).flatten(2).transpose(1, 2)
        for block in self.transformer_blocks:
            hidden = block(hidden, context)
        hidden = hidden.transpose(1, 2).unflatten(2, x.shape[2:])
        return x + self.proj_out(hidden)


class Upsample2D(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class DownBlock2D(nn.Module):
    def __init__(self, n_in, n_out, n_time, n_context, *, is_last):
        super().__init__()
        self.resnets = nn.ModuleList(
            [ResnetBlock2D(n_in, n_out, n_time), ResnetBlock2D(n_out, n_out, n_time)]
        )
        self.attentions = None
        self.downsampler = None
        if not is_last:
            self.attentions = nn.ModuleList(
                [Transformer2DModel(n_out, n_context) for _ in range(2)]
            )
            self.downsampler = nn.Conv2d(n_out, n_out, 3, stride=2, padding=1)

    def forward(self, x, time, context):
        skips = []
        for i, resnet in enumerate(self.resnets):
            x = resnet(x, time)
            if self.attentions is not None:
                x = self.attentions[i](x, context)
            skips.append(x)
        if self.downsampler is not None:
            x = self.downsampler(x)
            skips.append(x)
        return x, skips


class MidBlock2D(nn.Module):
    def __init__(self, width, n_time, n_context):
        super().__init__()
        self.resnets = nn.ModuleList(
            [ResnetBlock2D(width, width, n_time) for _ in range(2)]
        )
        self.attention = Transformer2DModel(width, n_context)

    def forward(self, x, time, context):
        return self.resnets[1](self.attention(self.resnets[0](x, time), context), time)


class UpBlock2D(nn.Module):
    def __init__(self, n_in, n_skips, n_out, n_time, n_context):
        super().__init__()
        sizes = [n_in + n_skips[0], *(n_out + n for n in n_skips[1:])]
        self.resnets = nn.ModuleList(
            [ResnetBlock2D(size, n_out, n_time) for size in sizes]
        )
        self.attentions = None
        if n_context:
            self.attentions = nn.ModuleList(
                [Transformer2DModel(n_out, n_context) for _ in sizes]
            )
        self.upsampler = None

    def forward(self, x, skips, time, context):
        for i, resnet in enumerate(self.resnets):
            x = resnet(torch.cat([x, skips.pop()], dim=1), time)
            if self.attentions is not None:
                x = self.attentions[i](x, context)
        return x if self.upsampler is None else self.upsampler(x)


class UNet2DConditionModel(nn.Module):
    def __init__(self, widths=(320, 640, 1280, 1280), n_context=768):
        super().__init__()
        n_time = 4 * widths[0]
        self.time_embedding = nn.Sequential(
            nn.Linear(widths[0], n_time), nn.SiLU(), nn.Linear(n_time, n_time)
        )
        self.conv_in = nn.Conv2d(4, widths[0], 3, padding=1)
        n_skips = [widths[0]]
        self.down_blocks = nn.ModuleList()
        for i, n_out in enumerate(widths):
            is_last = i == len(widths) - 1
            n_in = n_skips[-1]
            block = DownBlock2D(n_in, n_out, n_time, n_context, is_last=is_last)
            self.down_blocks.append(block)
            n_skips += [n_out] * (2 if is_last else 3)
        self.mid_block = MidBlock2D(widths[-1], n_time, n_context)
        self.up_blocks = nn.ModuleList()
        n_in = widths[-1]
        for i, n_out in enumerate(reversed(widths)):
            taken = [n_skips.pop() for _ in range(3)]
            block = UpBlock2D(n_in, taken, n_out, n_time, n_context if i else 0)
            if n_skips:
                block.upsampler = Upsample2D(n_out)
            self.up_blocks.append(block)
            n_in = n_out
        self.conv_norm_out = nn.GroupNorm(N_GROUPS, widths[0])
        self.conv_act = nn.SiLU()
        self.conv_out = nn.Conv2d(widths[0], 4, 3, padding=1)

    def embed(self, timesteps):
        n = self.time_embedding[0].in_features // 2
        frequencies = torch.exp(-math.log(10_000) * torch.arange(n) / n)
        angles = timesteps[:, None] * frequencies
        return self.time_embedding(torch.cat([angles.cos(), angles.sin()], dim=-1))

    def forward(self, sample, timesteps, context):
        time = self.embed(timesteps)
        x = self.conv_in(sample)
        skips = [x]
        for block in self.down_blocks:
            x, taken = block(x, time, context)
            skips += taken
        x = self.mid_block(x, time, context)
        for block in self.up_blocks:
            x = block(x, skips, time, context)
        return self.conv_out(self.conv_act(self.conv_norm_out(x)))
