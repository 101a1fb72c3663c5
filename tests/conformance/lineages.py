"""Whether ``Trace.why`` is true: what a changed number does, beside what it says.

``python -m tests.conformance.lineages [WORDS]`` runs programs that build models of
``transformers`` from configurations, and the scripts in ``scripts/``. Of the tensors
that they make some are asked why each of their sizes is what it is. Then every integer
that a program says is changed, one at a time, the program runs again, and each size is
compared with what its chain predicts for that.
"""

import argparse
import datetime as dt
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple

import torch

from meta_magic.errors import TrialError
from meta_magic.explain.lineage.lineage_records import Lineage
from meta_magic.explain.lineage.size_lineages import find_lineages
from meta_magic.explain.lineage.traced_runs import Literal, Run, ask_run, ask_runs
from meta_magic.trace.trace import Trace
from tests.conformance.explanations import record_cell

SCRIPTS: Final = Path(__file__).with_name("scripts")

MODELS: Final = {
    "gpt2": (
        "GPT2Config, GPT2LMHeadModel",
        "n_embd=48, n_head=4, n_layer=2, vocab_size=101, n_positions=64, n_inner=80",
        "torch.zeros(2, 10, dtype=torch.long)",
    ),
    "llama": (
        "LlamaConfig, LlamaForCausalLM",
        (
            "hidden_size=48, intermediate_size=112, num_hidden_layers=2, "
            "vocab_size=101, num_attention_heads=6, num_key_value_heads=2"
        ),
        "torch.zeros(2, 10, dtype=torch.long)",
    ),
    "bert": (
        "BertConfig, BertModel",
        (
            "hidden_size=48, intermediate_size=112, num_hidden_layers=2, "
            "vocab_size=101, num_attention_heads=6, max_position_embeddings=40"
        ),
        "torch.zeros(3, 12, dtype=torch.long)",
    ),
    "vit": (
        "ViTConfig, ViTModel",
        (
            "hidden_size=48, intermediate_size=96, num_hidden_layers=2, image_size=32, "
            "num_attention_heads=4, patch_size=8"
        ),
        "torch.zeros(2, 3, 32, 32)",
    ),
    "resnet": (
        "ResNetConfig, ResNetModel",
        "embedding_size=16, hidden_sizes=[32, 64], depths=[1, 2], num_channels=3",
        "torch.zeros(2, 3, 70, 58)",
    ),
    "convnext": (
        "ConvNextConfig, ConvNextModel",
        "hidden_sizes=[16, 24, 32, 40], depths=[1, 1, 1, 1], patch_size=4",
        "torch.zeros(2, 3, 64, 96)",
    ),
    "mixtral": (
        "MixtralConfig, MixtralForCausalLM",
        (
            "hidden_size=48, intermediate_size=80, num_hidden_layers=1, "
            "vocab_size=101, num_attention_heads=6, num_key_value_heads=2, "
            "num_local_experts=4"
        ),
        "torch.zeros(2, 10, dtype=torch.long)",
    ),
    "t5": (
        "T5Config, T5EncoderModel",
        "d_model=48, d_kv=8, d_ff=96, num_layers=2, num_heads=6, vocab_size=101",
        "torch.zeros(2, 9, dtype=torch.long)",
    ),
}
"""Of each model its classes, its configuration, and what it is given."""

PROGRAM: Final = """import torch
from transformers import {classes}
config = {config}({sizes})
model = {model}(config).eval()
out = model({given})
"""

N_CALLS: Final = 60
"""Of how many calls of a program the results are asked about."""

STEPS: Final = (1, 2)
"""By how much a number is changed, besides doubled."""


class Asked(NamedTuple):
    """A size, and where it comes from.

    Attributes:
        call: Which of the observed calls returned the tensor.
        output: Which of its tensors.
        dim: Which dimension.
        lineage: The chain; None where the block is run with other numbers for it.
    """

    call: int
    output: int
    dim: int
    lineage: Lineage | None


class Shapes(NamedTuple):
    """What a run made.

    Attributes:
        calls: Of each call its function, its line, and the shapes that it returned.
        has_failed: Whether it ended with an error.
    """

    calls: list[tuple[str, int | None, list[tuple[int, ...]]]]
    has_failed: bool

    def count_same(self, other: "Shapes") -> int:
        """Return how many calls are the same as of another run, from the first on."""
        pairs = zip(self.calls, other.calls, strict=False)
        same = takewhile(lambda pair: pair[0][:2] == pair[1][:2], pairs)
        return sum(1 for _ in same)


def ask(run: Run) -> tuple[list[Asked], list[Literal]]:
    """Return where sizes of some tensors come from, and what the program says."""
    calls = [call for call in run.observer.calls if call.outputs]
    chosen = calls[:: max(len(calls) // N_CALLS, 1)]
    lineages = find_lineages(run)
    asked = []
    for call in chosen:
        for output, node in enumerate(call.outputs):
            for dim in range(len(node.shape)):
                lineage, unresolved = lineages.why_size("", node, dim)
                known = None if unresolved else lineage
                asked.append(Asked(call.index, output, dim, known))
    return asked, list(run.literals)


def read_shapes(run: Run) -> Shapes:
    """Return of each call of a run its function, and the shapes that it returned."""
    calls = [
        (str(call.function), call.line, [node.shape for node in call.outputs])
        for call in run.observer.calls
    ]
    return Shapes(calls, has_failed=run.trace.error is not None)


def compare(trace: Trace) -> Counter[str]:
    """Return how often a chain was right, and what else came of it."""
    found: Counter[str] = Counter()
    asked, literals = ask_run(trace, ask)
    found["sizes"] = len(asked)
    for lineage in (one.lineage for one in asked):
        if lineage is None:
            found["left to runs with other numbers"] += 1
            continue
        found["with a number that is written"] += bool(lineage.roots)
        found["steps"] += len(lineage.steps)
        found["without formula"] += sum(
            bool(step.parts) and not step.formula for step in lineage.steps
        )
    before = ask_run(trace, read_shapes)
    changes = [
        {number: value}
        for number, literal in enumerate(literals)
        for value in {*(literal.value + step for step in STEPS), 2 * literal.value}
        if value != literal.value
    ]
    for first in range(0, len(changes), 2):
        batch = changes[first : first + 2]
        for change, after in zip(
            batch, ask_runs(trace, batch, read_shapes), strict=True
        ):
            if isinstance(after, TrialError):
                found["runs that ended"] += 1
            else:
                ((number, value),) = change.items()
                literal = literals[number]
                found.update(compare_run(asked, literal, value, before, after))
    return found


def compare_run(
    asked: Sequence[Asked],
    literal: Literal,
    value: int,
    before: Shapes,
    after: Shapes,
) -> Iterator[str]:
    """Yield for each size that a changed run has as well what its chain says of it.

    Where sizes do not fit each other then, that is up to the error. Where other layers
    are made then, or from where on other batches, no tensor is known to be the same.
    """
    if not after.has_failed and len(after.calls) != len(before.calls):
        yield "runs of other layers"
        return
    n_same = before.count_same(after)
    for one in asked:
        if one.call >= n_same:
            yield "after an error, or another call"
            continue
        size = read_size(after.calls[one.call][2], one)
        if one.lineage is None or size is None:
            continue
        wanted = find_root(one.lineage, literal)
        predicted = one.lineage.predict({} if wanted is None else {wanted: value})
        if predicted is None:
            yield "not predicted"
        elif predicted == size:
            yield "as predicted" if wanted is None else "as predicted, of a root"
        else:
            yield "WRONG"
            told = f"{one.lineage}\n{literal} -> {value}: {predicted}"
            print(f"{told} instead of {size}", flush=True)


def read_size(shapes: Sequence[tuple[int, ...]], asked: Asked) -> int | None:
    """Return the size that is asked about, of what a call returned; None for none."""
    shape = shapes[asked.output] if asked.output < len(shapes) else ()
    return shape[asked.dim] if asked.dim < len(shape) else None


def find_root(lineage: Lineage, literal: Literal) -> int | None:
    """Return which step of a chain is a number that is written; None if none is."""
    here = literal.line, literal.column
    for number, step in enumerate(lineage.steps):
        if step.is_written and (step.line, step.column) == here:
            return number
    return None


def list_programs() -> Iterator[tuple[str, str]]:
    """Yield names and texts of programs."""
    for name, (classes, sizes, given) in MODELS.items():
        config, model = classes.split(", ")
        words = {"classes": classes, "config": config, "model": model}
        yield name, PROGRAM.format(**words, sizes=sizes, given=given)
    for path in sorted(SCRIPTS.glob("*.py")):
        yield path.stem, path.read_text(encoding="utf-8")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", default=[""], help="in names of programs")
    words = parser.parse_args().words
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    total: Counter[str] = Counter()
    for name, text in list_programs():
        if not any(word in name for word in words):
            continue
        start = perf_counter()
        trace = record_cell(text, f"<{name}>")
        if trace.error:
            print(f"{name}: {trace.error}")
            continue
        try:
            found = compare(trace)
        except TrialError as error:
            print(f"{name}: {error}", flush=True)
            continue
        print(f"{name}: {dict(found)}, {perf_counter() - start:.0f} s", flush=True)
        total += found
    print(f"{dt.datetime.now(tz=dt.UTC).date()}, torch {torch.__version__}")
    for what, count in total.items():
        print(f"{what}: {count:,}")


if __name__ == "__main__":
    main()
