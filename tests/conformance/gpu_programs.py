"""Training steps that keep a GPU busy: each makes a model and returns a step."""

import statistics
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

Step = Callable[[], None]

PROGRAMS: dict[str, Callable[[], Step]] = {}


def program(make: Callable[[], Step]) -> Callable[[], Step]:
    """Note a program by the name of its function."""
    PROGRAMS[make.__name__] = make
    return make


def make_step(
    optimizer: torch.optim.Optimizer, find_loss: Callable[[], torch.Tensor]
) -> Step:
    """Return a training step."""

    def step() -> None:
        optimizer.zero_grad()
        find_loss().backward()
        optimizer.step()

    return step


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, 32000, shape, device="cuda")


@program
def gpt2() -> Step:
    model = GPT2LMHeadModel(GPT2Config()).cuda()
    x = ids(8, 512)
    return make_step(
        torch.optim.AdamW(model.parameters()), lambda: model(x, labels=x).loss
    )


@program
def gpt2_autocast() -> Step:
    model = GPT2LMHeadModel(GPT2Config()).cuda()
    x = ids(8, 512)

    def find_loss() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return model(x, labels=x).loss

    return make_step(torch.optim.AdamW(model.parameters()), find_loss)


def make_llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).to("cuda", torch.bfloat16)


@program
def llama_1b() -> Step:
    model = make_llama()
    x = ids(4, 1024)
    return make_step(
        torch.optim.AdamW(model.parameters(), fused=True),
        lambda: model(x, labels=x, use_cache=False).loss,
    )


@program
def llama_1b_checkpointed() -> Step:
    model = make_llama().train()
    model.gradient_checkpointing_enable()
    x = ids(8, 2048)
    return make_step(
        torch.optim.AdamW(model.parameters()),
        lambda: model(x, labels=x, use_cache=False).loss,
    )


@program
def llama_1b_generation() -> Step:
    model = make_llama().eval()
    x = ids(4, 256)

    @torch.no_grad()
    def step() -> None:
        cache, tokens = None, x
        for _ in range(16):
            given = {"past_key_values": cache, "use_cache": True}
            returned = model(tokens, **given, logits_to_keep=1)
            cache, tokens = returned.past_key_values, returned.logits.argmax(-1)

    return step


@program
def resnet50() -> Step:
    model = ResNetForImageClassification(ResNetConfig()).cuda()
    images = torch.randn(32, 3, 224, 224, device="cuda")
    return make_step(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        lambda: model(images).logits.pow(2).mean(),
    )


@program
def resnet50_channels_last() -> Step:
    model = ResNetForImageClassification(ResNetConfig()).cuda()
    model = model.to(memory_format=torch.channels_last)
    images = torch.randn(64, 3, 224, 224, device="cuda")
    images = images.to(memory_format=torch.channels_last)

    def find_loss() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return model(images).logits.float().sum()

    return make_step(torch.optim.SGD(model.parameters(), lr=0.1), find_loss)


def double(n_in: int, n_out: int) -> nn.Sequential:
    first, second = nn.Conv2d(n_in, n_out, 3, 1, 1), nn.Conv2d(n_out, n_out, 3, 1, 1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())


class UNet(nn.Module):
    """Two steps down and two up."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([double(3, 64), double(64, 128), double(128, 256)])
        self.up = nn.ModuleList([double(384, 128), double(192, 64)])
        self.head = nn.Conv2d(64, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for block in self.down:
            x = block(x if not kept else F.max_pool2d(x, 2))
            kept.append(x)
        for block, skip in zip(self.up, kept[1::-1], strict=True):
            x = block(torch.cat([F.interpolate(x, scale_factor=2), skip], 1))
        return self.head(x)


@program
def unet() -> Step:
    model = UNet().cuda()
    images = torch.randn(8, 3, 256, 256, device="cuda")
    return make_step(
        torch.optim.Adam(model.parameters()), lambda: model(images).pow(2).mean()
    )


@program
def encoder() -> Step:
    layer = nn.TransformerEncoderLayer(1024, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 12).cuda().bfloat16()
    x = torch.randn(16, 512, 1024, device="cuda", dtype=torch.bfloat16)
    return make_step(
        torch.optim.AdamW(model.parameters(), fused=True),
        lambda: model(x).float().pow(2).mean(),
    )


@program
def lstm() -> Step:
    model = nn.LSTM(512, 1024, num_layers=2, batch_first=True).cuda()
    x = torch.randn(64, 128, 512, device="cuda")
    return make_step(
        torch.optim.Adam(model.parameters()), lambda: model(x)[0].pow(2).mean()
    )


@program
def t5() -> Step:
    model = T5ForConditionalGeneration(T5Config()).cuda()
    x = ids(16, 256)
    return make_step(
        torch.optim.AdamW(model.parameters()),
        lambda: model(x, decoder_input_ids=x, labels=x).loss,
    )


@program
def vit_large_autocast() -> Step:
    config = ViTConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
    )
    model = ViTForImageClassification(config).cuda()
    images = torch.randn(32, 3, 224, 224, device="cuda")

    def find_loss() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return model(images).logits.float().sum()

    return make_step(torch.optim.AdamW(model.parameters(), foreach=False), find_loss)


@program
def mixtral() -> Step:
    config = MixtralConfig(
        hidden_size=1024,
        intermediate_size=2048,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
        num_local_experts=8,
    )
    model = MixtralForCausalLM(config).to("cuda", torch.bfloat16)
    x = ids(4, 512)
    return make_step(
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda: model(x, labels=x, use_cache=False).loss,
    )


@program
def mlp_half_with_scaler() -> Step:
    layers = [m for _ in range(8) for m in (nn.Linear(4096, 4096), nn.GELU())]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    x = torch.randn(2048, 4096, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = model(x).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def train(name: str) -> None:
    """Make a program, and run two steps: in the first an optimizer makes its state."""
    step = PROGRAMS[name]()
    step()
    step()


def measure_peak(name: str) -> int:
    """Return the most bytes of the GPU's allocator while a program runs.

    With workspaces of cuBLAS, which a process has once.
    """
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    train(name)
    return torch.cuda.max_memory_allocated() - before


def measure_seconds(name: str) -> float:
    """Return the median seconds of a step, by the events of a GPU."""
    step = PROGRAMS[name]()
    for _ in range(3):  # what is done once: libraries, kernels that are chosen
        step()
    seconds = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(end) / 1000)
    return statistics.median(seconds)
