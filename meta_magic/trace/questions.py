"""What a trace is asked that floors above it answer: cost, memory, what fits, and why.

Each of them is imported when it is asked, for a trace is made without.
"""

from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from meta_magic.cost.advice.advice_records import Advice
    from meta_magic.cost.costs import Cost
    from meta_magic.cost.memory_timeline import Memory
    from meta_magic.cost.program_columns import Columns
    from meta_magic.explain.explanations import Explanation
    from meta_magic.explain.lineage.lineage_records import Lineage
    from meta_magic.trace.calls import TensorMetadata
    from meta_magic.trace.failed_call import FailedCall
    from meta_magic.trace.program import Program
    from meta_magic.trials.fit import Candidates, Fit

__all__ = ["Questions"]


class Questions:
    """The questions that can be put to a trace, of its program."""

    program: "Program"
    failed: "FailedCall | None"

    @cached_property
    def columns(self) -> "Columns":
        """The program as numpy columns, which cost and memory are counted from."""
        home = import_module("meta_magic.cost.program_columns")
        columns: Columns = home.read_columns(self.program.with_raised)
        return columns

    @property
    def cost(self) -> "Cost":
        """FLOPs and bytes by phase, module and operator, and a roofline's time.

        Counted when it is asked for: keep it for several questions.
        """
        costs = import_module("meta_magic.cost.costs")
        cost: Cost = costs.build_cost(self)
        return cost

    @cached_property
    def peak_by_place(self) -> "Mapping[str, int]":
        """The most bytes at once on each device that the code names; {} for none.

        What it names no device for counts on the CPU.
        """
        tensors = [(*s.inputs, *s.outputs) for s in self.program.signatures]
        is_named = any(g.place is not None for pair in tensors for g in pair)
        return self.memory.peak_by_place if is_named else {}

    @cached_property
    def memory(self) -> "Memory":
        """The bytes that live after each operator call, by device and by purpose."""
        home = import_module("meta_magic.cost.memory_timeline")
        measured: Memory = home.measure_memory(self)
        return measured

    @cached_property
    def advice(self) -> "tuple[Advice, ...]":
        """What the block wastes, each with its lines and bytes, the most first.

        Where a choice mends it, the block is recorded again in a child to prove it.
        """
        home = import_module("meta_magic.trials.proofs")
        proven: tuple[Advice, ...] = home.prove_advice(self)
        return proven

    @cached_property
    def explanation(self) -> "Explanation | None":
        """Why the block failed: the call, its operands, the rule that it broke.

        The rule is found by calls with other sizes and dtypes, in a child process.
        """
        if self.failed is None:
            return None
        home = import_module("meta_magic.explain.explanations")
        explanation: Explanation | None = home.explain(self)
        return explanation

    def why(self, tensor: "Tensor | TensorMetadata", dim: int) -> "Lineage":
        """Return where a size of a tensor comes from, back to the numbers written.

        The block is run again in a child, with numbers that know where they come from;
        each step is found by making its call with others.

        Args:
            tensor: A tensor that the block made or read, or its metadata from the
                trace.
            dim: Its dimension; from the last one if negative.

        Raises:
            IndexError: It has no such dimension.
            TrialError: The trace has no such tensor, or the block cannot be run again.

        Example:
            >>> import meta_magic, torch
            >>> with meta_magic.record() as trace:
            ...     x = torch.ones(2, 3, 4).flatten(1)
            >>> print(trace.why(x, 1).lines[0])
            12 = 3 * 4 by flatten (line 2)
        """
        home = import_module("meta_magic.explain.lineage.why")
        lineage: Lineage = home.why(self, tensor, dim)
        return lineage

    def fit(
        self,
        device: str,
        vary: "Mapping[str, Candidates] | None" = None,
        choices: "Sequence[str]" = (),
        *,
        suggest: bool = False,
    ) -> "Fit":
        """Return whether the block fits a device, and up to which sizes it would.

        The block is recorded again, in a child process that may touch nothing outside
        of it, at a few sizes and at the answer.

        Args:
            device: An accelerator, by its name in ``devices.toml``, such as
                ``h100-sxm``; only what the block places on one counts, if any is.
            vary: Names of sizes, as the block or what is outside of it calls them, and
                what each may be: integers, or ``...`` for all. One varies at a time.
            choices: What is done otherwise: ``bfloat16``, ``autocast``, ``fused``,
                ``sgd``, ``8-bit``, ``paged 8-bit``, ``zeroed gradients``,
                ``checkpointing`` of blocks, or ``checkpointing:h.*`` of modules so
                named or of such a class, ``accumulation:batch/4`` in four parts.
            suggest: Whether to try what would make it fit, where nothing does.

        Raises:
            UnknownDeviceError: There is no such device; the error lists all.
            TrialError: The block cannot be run again: it writes files, uses the
                network, needs what is gone by now, or was run by ``exec``.

        Example:
            >>> import meta_magic, torch
            >>> rows = 8
            >>> with meta_magic.record() as trace:
            ...     x = torch.ones(rows, 10**6)
            >>> trace.fit("t4", vary={"rows": ...}).largest  # of 16 GB, 4 MB each
            {'rows': 4000}
        """
        home = import_module("meta_magic.trials.fit")
        fit: Fit = home.fit_trace(self, device, vary or {}, choices, suggest=suggest)
        return fit
