"""Methods of a trace that record its block again; ``Trace`` inherits them.

Each is answered by a floor above, which is imported when it is asked: a recording that
only looks at shapes pays for none of it.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pandas as pd
    from torch import Tensor, nn

    from meta_magic.cost.advice.evidence import Advice
    from meta_magic.explain.across_cells import Condition
    from meta_magic.explain.explanations import Explanation
    from meta_magic.explain.lineage.lineage_records import Lineage
    from meta_magic.ranks.recorded_ranks import Ranks
    from meta_magic.trace.calls import TensorMetadata
    from meta_magic.trace.trace import Trace
    from meta_magic.trials.dims import Dims
    from meta_magic.trials.fit import Candidates, Fit


class Questions:
    """What a trace answers by recording its block again, in a child process."""

    @cached_property
    def advice(self: Any) -> "tuple[Advice, ...]":
        """What the block wastes, with lines and bytes, the largest first.

        Where a change of the block would help, the block is recorded again with it in a
        child process, to prove the saving.
        """
        from meta_magic.trials.proofs import prove_advice  # noqa: PLC0415

        return tuple(prove_advice(self))

    @cached_property
    def explanation(self: Any) -> "Explanation | None":
        """Why the block failed: the call, its operands, the rule that it broke.

        The rule is found by probes: the call with other sizes and dtypes, in a child
        process. None if no call of torch failed.
        """
        if self.failed is None:
            return None
        from meta_magic.explain.across_cells import explain  # noqa: PLC0415

        return explain(self)

    def why(self: Any, tensor: "Tensor | TensorMetadata", dim: int) -> "Lineage":
        """Return where a size of a tensor comes from, back to the numbers in the code.

        The block is run again in a child process, with the earlier cells that it rests
        on and numbers that remember where they come from; each step is found by calls
        with other numbers.

        Args:
            tensor: A tensor that the block made or read, or its metadata from the
                trace.
            dim: Its dimension; counted from the last one if negative.

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
        from meta_magic.explain.across_cells import why  # noqa: PLC0415

        return why(self, tensor, dim)

    @cached_property
    def dims(self: Any) -> "Dims | None":
        """The names of sizes that the recording was asked for; None if for none.

        The block is recorded again with other values of each name, in a child process:
        this takes up to 5 s of processor time, on first use. ``print`` shows the names,
        and why one has no formulas.

        Raises:
            TrialError: The block cannot be run again, or has no such name.

        Example:
            >>> import meta_magic, torch
            >>> with meta_magic.record(dims="B,D") as trace:
            ...     B, D = 2, 3
            ...     x = torch.ones(B, 4 * D).flatten()
            >>> trace.shape(x)
            '[4*B*D]'
        """
        if self.rerun is None or not self.rerun.options.dims:
            return None
        from meta_magic.trials.dims import find_dims  # noqa: PLC0415

        return find_dims(self, self.rerun.options.dims)

    @cached_property
    def named(self: Any) -> "Trace":
        """The trace with sizes by name, if recorded with ``dims``; else this trace."""
        if self.rerun is None or not self.rerun.options.dims:
            return cast("Trace", self)
        from meta_magic.trials.dims import name_trace  # noqa: PLC0415

        return name_trace(self)

    def shape(self: Any, tensor: "Tensor | TensorMetadata") -> str:
        """Return the shape of a tensor by name, such as ``[B, T, 3*D]``.

        Args:
            tensor: A tensor that the block made, or its metadata from the trace.

        Raises:
            TrialError: The recording was asked for no names, or has no such tensor; or
                as of :attr:`dims`.
        """
        from meta_magic.explain.lineage.why import find_number  # noqa: PLC0415
        from meta_magic.trials.dims import find_shape  # noqa: PLC0415

        return find_shape(self, find_number(self, tensor), tuple(tensor.shape))

    def fit(
        self: Any,
        device: str,
        vary: "Mapping[str, Candidates] | Iterable[str] | None" = None,
        choices: "Sequence[str]" = (),
        *,
        suggest: bool = False,
    ) -> "Fit":
        """Return whether the block fits a device, and up to which sizes it would.

        The block is recorded again at a few sizes and at the answer, in a child process
        that may change nothing outside of itself.

        Args:
            device: An accelerator, by its name in ``devices.toml``, such as
                ``h100-sxm``. If the block puts tensors on accelerators, only those
                count.
            vary: Names of variables with sizes, in the block or outside of it, and the
                values of each: integers, or ``...`` for all; names alone mean all. One
                varies at a time.
            choices: Changes of the block: ``bfloat16``, ``autocast``, ``fused``,
                ``sgd``, ``8-bit``, ``paged 8-bit``, ``checkpointing`` of blocks, or
                ``checkpointing:h.*`` of modules by name or class,
                ``accumulation:batch/4`` in four parts.
            suggest: Whether to try further changes if nothing fits.

        Raises:
            UnknownDeviceError: There is no such device; the error lists all.
            TrialError: The block cannot be run again: it writes files, uses the
                network, needs an object that is gone, or was run by ``exec``.

        Example:
            >>> import meta_magic, torch
            >>> rows = 8
            >>> with meta_magic.record() as trace:
            ...     x = torch.ones(rows, 10**6)
            >>> trace.fit("t4", vary={"rows": ...}).largest  # of 16 GB, 4 MB each
            {'rows': 4000}
        """
        from meta_magic.trials.fit import fit_trace  # noqa: PLC0415

        if not isinstance(vary, Mapping):
            names = [vary] if isinstance(vary, str) else vary or ()
            vary = dict.fromkeys(names, ...)
        return fit_trace(self, device, vary, choices, suggest=suggest)

    def sweep(
        self: Any,
        vary: "Mapping[str, Sequence[int]] | None" = None,
        device: str = "h100-sxm",
        choices: "Sequence[Sequence[str]]" = ((),),
        links: str = "nvlink4-ib400",
        *,
        metrics: "Sequence[str] | None" = None,
        until: str = "",
        **sizes: "Sequence[int]",
    ) -> "pd.DataFrame":
        """Return what the block needs at each combination of sizes and choices.

        Each is a recording of its own, in a child process that may change nothing
        outside of itself. A combination with which the block fails is a row with the
        reason in ``error``. An interrupt keeps the rows that are there.

        Args:
            vary: As ``sizes``; for names that are no identifiers.
            device: An accelerator, by its name in ``devices.toml``.
            choices: Sets of changes of the block, each as in :meth:`fit`; ``()`` is the
                block as it is.
            links: How accelerators are connected, by the name in ``links.toml``.
            metrics: Columns, of ``params``, ``flops``, ``peak_nbytes`` (bytes, on the
                device that needs most), ``sent_nbytes`` (bytes of collectives),
                ``seconds`` and ``exposed`` (estimates), ``ops``; None for all.
            until: A limit such as ``params<7e9``: for each combination of the other
                names, the last name is raised as long as the limit is kept, and the
                column ``frontier`` marks its largest value. Few values are recorded, so
                what is limited must grow with it.
            sizes: Names of sizes, in the block or outside of it, and the values of
                each: positive integers.

        Raises:
            UnknownDeviceError: There is no such device, or no such links.
            TrialError: The block cannot be run again at all, has no such name, there is
                no such metric, or a value is no positive integer.

        Example:
            >>> import meta_magic, torch
            >>> rows = 8
            >>> with meta_magic.record() as trace:
            ...     x = torch.ones(rows, 10**6)
            >>> table = trace.sweep(rows=[1000, 8000], device="t4")  # 16 GB, 4 MB each
            >>> table["fits"].tolist()
            [True, False]
        """
        from meta_magic.trials.sweeps import METRICS, sweep_trace  # noqa: PLC0415

        names = {**(vary or {}), **sizes}
        shown = METRICS if metrics is None else metrics
        return sweep_trace(self, names, device, choices, links, shown, until)

    def scale(
        self: Any,
        name: str,
        values: "Sequence[int]",
        targets: "Sequence[float]",
        metric: str = "params",
        device: str = "h100-sxm",
        **given: "Sequence[int]",
    ) -> "pd.DataFrame":
        """Return a family of designs: for each target, the size that comes nearest.

        Args:
            name: The size that is looked for, as in :meth:`sweep`.
            values: Its values; the metric must grow with them.
            targets: What the metric is to be, such as ``[125e6, 350e6, 1.3e9]``.
            metric: One of those of :meth:`sweep`.
            device: An accelerator, by its name in ``devices.toml``.
            given: Other sizes, with a value for each target.

        Raises:
            UnknownDeviceError: There is no such device.
            TrialError: As of :meth:`sweep`.

        Example:
            >>> import meta_magic, torch
            >>> width, depth = 8, 2
            >>> with meta_magic.record() as trace:
            ...     layers = [torch.nn.Linear(width, width) for _ in range(depth)]
            ...     model = torch.nn.Sequential(*layers)
            >>> family = trace.scale("width", range(8, 999), [1e4, 1e6], depth=[2, 4])
            >>> family["width"].tolist()  # 2 * 70 * 71, and 4 * 499 * 500 parameters
            [70, 499]
        """
        from meta_magic.trials.sweeps import scale_trace  # noqa: PLC0415

        return scale_trace(self, name, values, targets, metric, given, device)

    def check(self: Any, *names: str, **values: "Sequence[int]") -> "Condition":
        """Return for which sizes the block runs, as a condition and in words.

        The block is recorded again at a few chosen sizes, in a child process that may
        change nothing outside of itself. A size fails if the block raises, if a
        variable has another number of dimensions, or if a note on a broadcast appears.

        Args:
            names: Names of sizes, in the block or outside of it: variables, arguments
                such as ``n_embd=64``, fields of dataclasses; or ``"B=8"`` for the 8
                that the block has once. Each varies alone.
            values: The same, with the values that matter.

        Raises:
            TrialError: The block failed, cannot be run again, takes long, or has no
                such size.

        Example:
            >>> import meta_magic, torch
            >>> with meta_magic.record() as trace:
            ...     side = 28
            ...     x = torch.ones(2, side, side).view(2, side // 7, 7, side // 7, 7)
            >>> trace.check("side").condition
            'side % 7 == 0'
        """
        from meta_magic.explain.across_cells import check_sizes  # noqa: PLC0415

        return check_sizes(self, {**dict.fromkeys(names), **values})

    def annotate(self: Any, of: "type[nn.Module] | nn.Module") -> str:
        """Return the signature of a class's ``forward`` with shapes, for jaxtyping.

        A size that is not the same in all calls is ``_``. With ``record(dims=...)``
        sizes are names, else numbers.

        Args:
            of: The class of modules that the block called, or one of them.

        Raises:
            TrialError: The recording has no call of such a module; or as of
                :attr:`dims`.

        Example:
            >>> import meta_magic, torch
            >>> with meta_magic.record(dims="B") as trace:
            ...     B = 4
            ...     y = torch.nn.Flatten()(torch.ones(B, 3, 5))
            >>> trace.annotate(torch.nn.Flatten).splitlines()[-1][:49]
            'def forward(self, input: Float[Tensor, "B 3 5"]) '
        """
        from meta_magic.trials.annotations import write_signature  # noqa: PLC0415

        return write_signature(self, of)

    def record_ranks(self: Any, ranks: "str | Sequence[int]" = "differing") -> "Ranks":
        """Record the cell as several ranks of its world; see :func:`record_ranks`.

        Each is a new process, which first runs the earlier cells that the cell needs.
        """
        from meta_magic.trials.rank_runs import record_block_ranks  # noqa: PLC0415

        return record_block_ranks(self, ranks)
