"""The commands ``meta-magic diff A B`` and ``meta-magic fit WHAT``.

:func:`diff` prints what one design changes in another. A and B are what ``meta-magic
check`` takes, or a script of a git revision: ``train.py@HEAD~3``. :func:`fit` prints
what a program needs, and which accelerators have room. WHAT is a script, a function, a
``config.json`` or the name of a model whose config is in the hub's cache. A config
becomes three scripts: a training step, one with adapters of low rank, and inference.
Each program is recorded in a child process.
"""

import argparse
import json
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from meta_magic.check.checked_process import check_subject
from meta_magic.check.records import BlockResult, Request, read_subject
from meta_magic.errors import CheckError
from meta_magic.trace.units import format_bytes, format_line

if TYPE_CHECKING:
    from meta_magic.designs.design import Design


DIFFERENT = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``meta-magic diff`` takes besides the options of a recording."""
    for name in ("before", "after"):
        parser.add_argument(
            name,
            metavar=name.upper(),
            help="script.py, pkg.module:function, file.py:function or notebook.ipynb; "
            "script.py@REVISION is the script as git has it",
        )
    parser.add_argument("--json", action="store_true", help="print JSON")


def diff(options: argparse.Namespace, request: Callable[..., Request]) -> int:
    """Print what differs; return 0 if nothing does, else 1.

    Raises:
        CheckError: A subject cannot be read, or fails.
    """
    before, after = (
        read_one(name, request) for name in (options.before, options.after)
    )
    from meta_magic.designs.differences import compare  # noqa: PLC0415  imports torch

    found = compare(before, after)
    if options.json:
        record = {
            "text": found.text,
            "numbers": dict(found.numbers),
            "totals": dict(found.totals),
            "changes": [asdict(one) for one in found.changes],
        }
        print(json.dumps(record, indent=2))  # noqa: T201  a command
    else:
        print(found)  # noqa: T201  as well
    return DIFFERENT if found else 0


def read_one(name: str, request: Callable[..., Request]) -> "Design":
    """Return the design of a subject, recorded in a child process.

    Raises:
        CheckError: It cannot be read, or fails.
    """
    with open_revision(name) as path:
        asked = request(subject=read_subject(path), has_design=True)
        try:
            parts = check_right(asked)
        except CheckError as error:
            raise CheckError(f"{name}: {error}") from None
    designs = [part.design for part in parts if part.design is not None]
    if not designs:
        raise CheckError(f"{name}: nothing was recorded")
    largest: Design = max(designs, key=lambda one: one.totals["params"])
    return largest


def check_right(asked: Request, *, is_ours: bool = False) -> tuple[BlockResult, ...]:
    """Return the recordings of a subject that runs.

    Args:
        is_ours: Whether it is one of ``SCRIPTS``, whose lines nobody knows.

    Raises:
        CheckError: It fails, with the line and the message.
    """
    parts = check_subject(asked, lambda _: None).parts
    for part in parts:
        for found in part.diagnostics[:1]:  # the worst comes first
            if part.outcome != "right":
                text = found.text.partition("\n")[0]
                raise CheckError(format_line(None if is_ours else found.line) + text)
    return parts


@contextmanager
def open_revision(name: str) -> Iterator[str]:
    """Yield a subject's name; of ``script.py@REVISION`` that of a copy by git.

    The copy has the whole repository as it was, so that the script finds its modules.

    Raises:
        CheckError: git does not know the revision, or the file in it.
    """
    path, at, revision = name.rpartition("@")
    if not at or Path(name).exists():
        yield name
        return
    file = Path(path).absolute()
    root = Path(run_git(file.parent, "rev-parse", "--show-toplevel").decode().strip())
    archive = run_git(root, "archive", "--format=tar", revision)
    with TemporaryDirectory() as folder:
        with tarfile.open(fileobj=BytesIO(archive)) as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # from 3.11.4
            tar.extractall(folder)  # noqa: S202  git wrote it
        copy = Path(folder, file.resolve().relative_to(root.resolve()))
        if not copy.is_file():
            raise CheckError(f"{name}: {revision} has no such file")
        yield str(copy)


def run_git(folder: Path, *arguments: str) -> bytes:
    """Return the output of a command of git.

    Raises:
        CheckError: It failed, with its message.
    """
    try:
        command: list[Any] = ["git", "-C", folder, *arguments]
        done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
    except OSError as error:
        raise CheckError(f"git cannot be run: {error}") from None
    if done.returncode:
        raise CheckError(f"git: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


CHANGES: Final = ((), ("checkpointing",), ("autocast",), ("8-bit",))
"""Choices that are tried of a script, as of ``trace.fit(choices=...)``."""

MODEL: Final = """
import torch
from transformers import AutoConfig, AutoModelForCausalLM
batch, length = $batch, $length
config = AutoConfig.from_pretrained($source, local_files_only=True)
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to("cuda")
tokens = torch.zeros(batch, length, dtype=torch.long, device="cuda")
"""

STEP: Final = """
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
model(tokens, labels=tokens, use_cache=False).loss.backward()
optimizer.step()
"""

ADAPTERS: Final = """
from torch import nn
from transformers.pytorch_utils import Conv1D  # GPT-2's Linear, its weight transposed

class Adapter(nn.Module):
    def __init__(self, layer, rank=16):
        super().__init__()
        self.layer = layer
        like = {"dtype": layer.weight.dtype, "device": "cuda"}
        n_in, n_out = layer.weight.shape[:: 1 if isinstance(layer, Conv1D) else -1]
        self.down = nn.Linear(n_in, rank, bias=False, **like)
        self.up = nn.Linear(rank, n_out, bias=False, **like)
    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))

model.requires_grad_(False)
head = model.get_output_embeddings()
for parent in [*model.modules()]:
    for name, layer in [*parent.named_children()]:
        if isinstance(layer, nn.Linear | Conv1D) and layer is not head:
            setattr(parent, name, Adapter(layer))
model.enable_input_require_grads()
"""

INFERENCE: Final = """
model.eval()
with torch.no_grad():
    cache = model(tokens[:, :-1], use_cache=True).past_key_values
    model(tokens[:, -1:], past_key_values=cache, use_cache=True)
"""

CHECKPOINTED: Final = "\nmodel.gradient_checkpointing_enable()\nmodel.train()\n"

SCRIPTS: Final[Mapping[str, str]] = {
    "training, AdamW": MODEL + STEP,
    "training, checkpointing": MODEL + CHECKPOINTED + STEP,
    "adapters of rank 16": MODEL + ADAPTERS + STEP,
    "adapters, checkpointing": MODEL + ADAPTERS + CHECKPOINTED + STEP,
    "inference with a cache": MODEL + INFERENCE,
}
"""What is done with a model, in bfloat16, as a script."""


def add_fit_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``meta-magic fit`` takes besides the options of a recording."""
    parser.add_argument(
        "what",
        metavar="WHAT",
        help="script.py, pkg.module:function, file.py:function, config.json, or the "
        "name of a model whose config is in the hub's cache",
    )
    parser.add_argument("--batch", type=int, default=1, help="of a config (default: 1)")
    parser.add_argument(
        "--length",
        type=int,
        default=2048,
        help="of a config, in tokens (default: 2048)",
    )


def fit(options: argparse.Namespace, request: Callable[..., Request]) -> int:
    """Print the table; return 0.

    Raises:
        CheckError: The subject cannot be read, or fails.
    """
    try:
        rows = [*list_rows(options, request)]
    except CheckError as error:
        raise CheckError(f"{options.what}: {error}") from None
    width = max(len(name) for name, _ in rows)
    for name, peak in rows:
        if isinstance(peak, str):
            print(f"{name:<{width}}  {peak}")  # noqa: T201  a command
        else:
            print(f"{name:<{width}}  {format_bytes(peak):>9}  {list_devices(peak)}")  # noqa: T201  as well
    return 0


def list_rows(
    options: argparse.Namespace, request: Callable[..., Request]
) -> Iterator[tuple[str, int | str]]:
    """Yield what is done, with the bytes at the peak or the reason why it fails."""
    name = options.what
    if ":" in name or Path(name).suffix in {".py", ".ipynb"}:
        asked = request(subject=read_subject(name), choices=CHANGES)
        for choices, peak in read_peaks(asked).items():
            yield ", ".join(choices) or "as it is", peak
        return
    if Path(name).suffix == ".json" and not Path(name).exists():
        raise CheckError("there is no such file")
    source = str(Path(name).resolve()) if Path(name).exists() else name
    with TemporaryDirectory() as folder:
        has_run = False
        for what, text in SCRIPTS.items():
            path = Path(folder, "model.py")
            given = {"batch": options.batch, "length": options.length}
            path.write_text(Template(text).substitute(given, source=repr(source)))
            asked = request(subject=read_subject(str(path)), choices=((),))
            settings = {**asked.settings, "as_device": "cuda"}
            try:
                asked = replace(asked, settings=settings)
                (peak,) = read_peaks(asked, is_ours=True).values()
            except CheckError as error:
                if not has_run:  # the others read the same config
                    raise
                peak = str(error)
            has_run = True
            yield what, peak
    yield from read_formulas(source, options.batch, options.length)


def read_formulas(source: str, batch: int, length: int) -> Iterator[tuple[str, int]]:
    """Yield the formulas of ``accelerate estimate-memory`` and hf-mem, if installed.

    They know the parameters of a model, and hf-mem its cache; neither activations.
    """
    if find_spec("accelerate") is None and find_spec("hf_mem") is None:
        return
    import torch  # noqa: PLC0415  takes a second
    import transformers as hub  # noqa: PLC0415  optional, as all here

    config = hub.AutoConfig.from_pretrained(source, local_files_only=True)
    with torch.device("meta"):
        body = hub.AutoModel.from_config(config, dtype=torch.float32)
        model = hub.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if find_spec("accelerate"):
        from accelerate.commands import estimate  # noqa: PLC0415
        from accelerate.utils import calculate_maximum_sizes  # noqa: PLC0415

        nbytes, _ = calculate_maximum_sizes(body)
        yield "accelerate: weights in float16", nbytes // 2
        for dtype in ("float16", "float32"):
            used = max(estimate.estimate_training_usage(nbytes, dtype).values())
            yield f"accelerate: Adam, {dtype}", used
    if find_spec("hf_mem"):
        from hf_mem.safetensors import kv_cache, metadata  # noqa: PLC0415

        written = {
            name: {"dtype": "BF16", "shape": [*parameter.shape]}
            for name, parameter in model.named_parameters()
        }
        weights = metadata.parse_safetensors_metadata({"model": written}).bytes_count
        yield "hf-mem: weights", weights
        sizes = {**config.to_dict(), **{n: getattr(config, n) for n in NAMED}}
        cache = kv_cache.compute_safetensors_kv_cache_size(sizes, "BF16", length, batch)
        yield "hf-mem: weights and cache", weights + cache


NAMED: Final = ("hidden_size", "num_attention_heads", "num_hidden_layers")
"""What hf-mem reads of a config; GPT-2 has other names for them."""


def read_peaks(
    asked: Request, *, is_ours: bool = False
) -> Mapping[tuple[str, ...], int | str]:
    """Return the bytes at the peak of a subject with each set of choices.

    Raises:
        CheckError: It fails as it is, or makes no tensor.
    """
    parts = check_right(asked, is_ours=is_ours)
    peaks = [part.peaks for part in parts if part.peaks.get((), 0)]
    if not peaks:
        raise CheckError("it makes no tensor")
    as_it_is = [one[()] for one in peaks]  # of a notebook, of each cell
    sizes = [peak if isinstance(peak, int) else 0 for peak in as_it_is]
    return peaks[sizes.index(max(sizes))]


MAX_DEVICES: Final = 4


def list_devices(peak: int) -> str:
    """Return the smallest accelerators that have room for so many bytes."""
    from meta_magic.cost.device_table import list_devices as read_devices  # noqa: PLC0415  torch

    sized = [one for one in read_devices() if one.nbytes]
    fitting = sorted((one.nbytes, one.title) for one in sized if one.nbytes >= peak)
    if not fitting:
        return "no accelerator of the table has room"
    names = [
        f"{title} ({nbytes / 1e9:.0f} GB)" for nbytes, title in fitting[:MAX_DEVICES]
    ]
    n_more = len(fitting) - MAX_DEVICES
    return ", ".join([*names, f"{n_more} more"] if n_more > 0 else names)
