"""The rules of ``trace.advice``, and ``find_advice``, which runs them."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from meta_magic.cost.advice.costly_activations import (
    find_costly_activations,
    find_kept_graphs,
    find_math_attention,
)
from meta_magic.cost.advice.evidence import Advice, Evidence
from meta_magic.cost.advice.parameter_advice import (
    find_lost_initializations,
    find_missing_gradients,
    find_unread_gradients,
)
from meta_magic.cost.advice.wasted_tensors import (
    find_foreach_temporaries,
    find_idle_copies,
    find_wide_dtypes,
)
from meta_magic.cost.advice.world_advice import (
    find_gathered_twice,
    find_replicated_states,
    find_separate_reductions,
    find_small_messages,
    find_whole_parameters,
)

if TYPE_CHECKING:
    from meta_magic.trace.trace import Trace


ADVISORS: Final[Mapping[str, Callable[[Evidence], Iterator[Advice]]]] = {
    "attention": find_math_attention,
    "foreach": find_foreach_temporaries,
    "leak": find_kept_graphs,
    "copy": find_idle_copies,
    "dtype": find_wide_dtypes,
    "gradient": find_unread_gradients,
    "no gradient": find_missing_gradients,
    "tying": find_lost_initializations,
    "activations": find_costly_activations,
    "replicated": find_replicated_states,
    "unsharded": find_whole_parameters,
    "gathered": find_gathered_twice,
    "small messages": find_small_messages,
    "separate reductions": find_separate_reductions,
}
"""The rule of each kind of advice."""


def find_advice(trace: "Trace") -> tuple[Advice, ...]:
    """Return the advice on a trace, the largest saving of the peak first."""
    if not trace.program.with_raised.storage_by_tensor:
        return ()
    evidence = collect_evidence(trace)
    found = [advice for find in ADVISORS.values() for advice in find(evidence)]
    return tuple(sorted(found, key=lambda a: (-a.peak_nbytes, -a.nbytes)))


def collect_evidence(trace: "Trace") -> Evidence:
    """Return the evidence that a trace gives."""
    return Evidence(
        program=trace.program.with_raised,
        modules=trace.modules,
        memory=trace.memory,
        world=trace.world,
        sent=() if trace.world is None else trace.sent,
    )
