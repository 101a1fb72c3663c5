"""The payload: the JSON of a trace that the report in the browser reads.

The live report and the saved one read the same payload (``static/data.js``); both
change together with ``VERSION``. Calls and tensors, of which there are thousands, are
columns of integers that index tables. The browser computes times, sums and pictures.
Read :meth:`Payload.build` first.
"""

import gzip
import itertools
import json
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from meta_magic.cost.costs import (
    OneCall,
    Products,
    classify_products,
    count_one,
    find_vector_peak,
)
from meta_magic.cost.device_table import Device, list_devices
from meta_magic.cost.memory_timeline import find_fullest_device
from meta_magic.cost.program_columns import PHASES, Integers
from meta_magic.cost.storage_lives import CATEGORIES, order_stretches
from meta_magic.trace.modules import (
    ModuleNode,
    ModuleTensor,
    at_any_depth,
    distinct_tensors,
)
from meta_magic.trace.op_columns import OP_COLUMNS
from meta_magic.trace.program import MODULE_HEADER, first_operators
from meta_magic.trace.signature import CallSite, Geometry, Signature, SourcePosition
from meta_magic.trace.summary import describe_failure, describe_others, format_headline
from meta_magic.trace.world import World, describe_ranks
from meta_magic.view.details_payload import (
    columns_payload,
    details_payload,
    name_inputs,
)
from meta_magic.view.pictures import find_picture
from meta_magic.view.source_payload import (
    explanation_payload,
    find_texts,
    name_file,
    write_tokens,
)
from meta_magic.view.wire import (
    Table,
    as_columns,
    as_deltas,
    as_differences,
    count_runs,
    format_arguments,
    write_geometry,
    write_position,
    write_tensor,
)

if TYPE_CHECKING:
    from meta_magic.trace.trace import Trace

VERSION: Final = 6


def pack(trace: "Trace", level: int = 9) -> bytes:
    """Return the payload as JSON, compressed by gzip at a level from 0 to 9."""
    text = json.dumps(build_payload(trace), separators=(",", ":"), ensure_ascii=False)
    return gzip.compress(text.encode("utf-8", "surrogatepass"), level, mtime=0)


@at_any_depth
def build_payload(trace: "Trace") -> dict[str, Any]:
    """Return the payload of a trace, as plain lists and numbers."""
    return Payload(trace.named).build()


class Payload:
    """Builds the payload of one trace; all parts share its tables."""

    def __init__(self, trace: "Trace") -> None:
        self._trace = trace
        self._program = trace.program.with_raised
        self._geometries: Table[Geometry] = Table(write_geometry)
        self._positions: Table[SourcePosition] = Table(
            lambda position: write_position(position, name_file(position.file))
        )
        self._numbers = itertools.count()
        self._module_by_name: dict[tuple[int, str], int] = {}
        self._counted = {id(one) for one in distinct_tensors(trace.modules)}

    def build(self) -> dict[str, Any]:
        """Return the payload."""
        trace, program = self._trace, self._program
        works = [*map(count_one, program.signatures)]
        parts = {
            "failure": describe_failure(trace),
            "explanation": explanation_payload(trace),
            "error": trace.error,
            "error_line": trace.error_line or 0,
            "version": VERSION,
            "headline": format_headline(trace),
            "source": trace.source,
            "tokens": write_tokens(trace.source),
            "cell": {
                "file": name_file(trace.cell.file),
                "first": trace.cell.first_line,
            },
            "texts": [*find_texts(program, trace.cell.file)],
            "notes": [
                {
                    "text": note.text + describe_others(note),
                    "line": note.line or 0,
                    "why": note.evidence,
                }
                for note in trace.notes
            ],
            "nbytes_by_dtype": count_nbytes(trace.modules),
            "modules": [
                module
                for root, node in enumerate(trace.modules)
                for module in self._write_modules(node, root, -1)
            ],
            "signatures": as_columns(
                [*map(self._write_signature, program.signatures, works)]
            ),
            "places": as_columns([*map(self._write_call_site, program.call_sites)]),
            "ops": self._write_ops(),
            "storages": as_deltas(np.frombuffer(program.storage_by_tensor, np.uint32)),
            "owners": [
                [storage, self._find_module(number)]
                for storage, number in program.owner_by_storage
            ],
            "columns": columns_payload(trace),
            "remarks": {
                column.name: column.wire(trace.program)
                for column in OP_COLUMNS
                if callable(column.wire)
            },
            "calls": self._write_calls(),
            "arguments": [
                (tensor, ", ".join(names))
                for tensor, names in self._name_arguments().items()
            ],
            "details": details_payload(trace),
            "memory": memory_payload(trace),
            "work": work_payload(works),
            **world_payload(trace),
        }
        return parts | {
            "positions": as_columns(self._positions.rows),
            "geometries": self._geometries.rows,
        }

    def _write_signature(self, signature: Signature, work: OneCall) -> dict[str, Any]:
        return {
            "op": signature.op,
            "args": format_arguments(signature),
            "names": name_inputs(signature),
            "inputs": [*map(self._geometries.of, signature.inputs)],
            "outputs": [*map(self._geometries.of, signature.outputs)],
            "writes": list(signature.writes),
            "views": [-1 if view is None else view for view in signature.views],
            "flops": work.flops if work.kind == "product" else -1,
            "picture": find_picture(signature),
        }

    def _write_call_site(self, site: CallSite) -> dict[str, Any]:
        position = site.position
        return {
            "function": site.function or "",
            "line": site.line or 0,
            "phase": PHASES.index(site.phase),
            "position": -1 if position is None else self._positions.of(position),
        }

    def _write_modules(
        self, node: ModuleNode, root: int, parent: int
    ) -> Iterator[dict[str, Any]]:
        """Yield a module and all below it, parents first."""
        number = next(self._numbers)
        self._module_by_name.setdefault((root, node.fqn), number)
        shared = node.shared_with
        devices = node.places if self._trace.peak_by_place else ()
        named = {"place": ", ".join(devices)} if devices else {}
        if node.kind != node.class_name:
            named["kind"] = node.kind
        tensors = [*map(write_tensor, node.tensors)]
        for tensor, written in zip(node.tensors, tensors, strict=True):
            if not tensor.tied_to and id(tensor) not in self._counted:
                written["is_again"] = True
        yield named | {
            "parent": parent,
            "name": node.name,
            "fqn": node.fqn,
            "class_name": node.class_name,
            "tensors": tensors,
            "n_calls": node.n_calls,
            "first_call": -1 if node.first_call is None else node.first_call,
            "shared_with": -1 if shared is None else self._module_by_name[root, shared],
        }
        for child in node.children:
            yield from self._write_modules(child, root, number)

    def _find_module(self, number: int) -> int:
        """Return the row of a module by its number in the program, or -1."""
        root, fqn, _ = self._program.modules[number]
        if root is None or fqn is None:
            return -1
        return self._module_by_name.get((root, fqn), -1)

    def _find_modules(self, numbers: Integers) -> list[int]:
        """Return the rows of many modules; -1 gives -1."""
        rows = [*map(self._find_module, range(len(self._program.modules))), -1]
        found: list[int] = np.asarray(rows)[numbers].tolist()
        return found

    def _write_ops(self) -> dict[str, list[int]]:
        columns = self._trace.columns
        back = np.arange(columns.n_calls) - columns.forward
        return {
            "signature": columns.signature.tolist(),
            "place": columns.call_site.tolist(),
            "module": self._find_modules(columns.find_holders(self._program)),
            "call": columns.module_call.tolist(),
            "forward": np.where(columns.forward < 0, 0, back).tolist(),
            "functions": count_runs(first_operators(self._program)),
            "tensors": as_deltas(columns.tensor),
        }

    def _write_calls(self) -> dict[str, list[Any]]:
        write = self._geometries.of
        structures: Table[Any] = Table(
            lambda sides: [
                [{"path": path, "geometry": write(g)} for path, g in side]
                for side in sides
            ]
        )
        program = self._program
        words = np.frombuffer(program.module_rows, np.uint32).astype(np.int64)
        rows = words.reshape(-1, MODULE_HEADER).T
        module, parent, position, line, first_op, end_op, values = rows
        structure = np.frombuffer(program.module_values, np.uint32).astype(np.int64)
        return {
            "module": self._find_modules(module),
            "parent": (parent - 1).tolist(),
            "line": line.tolist(),
            "position": self._positions.all_of(program.positions, position - 1),
            "first": as_differences(first_op),
            "length": (end_op - first_op).tolist(),
            "structure": structures.all_of(program.structures, structure[values]),
            "structures": structures.rows,
        }

    def _name_arguments(self) -> dict[int, dict[str, None]]:
        """Return the names in ``forward`` of tensors that models are called with."""
        found: dict[int, dict[str, None]] = {}
        calls, trees = self._trace.module_calls, self._trace.modules
        words = np.frombuffer(self._program.module_rows, np.uint32)
        _, parents, *_ = words.reshape(-1, MODULE_HEADER).T
        for index in np.flatnonzero(parents == 0).tolist():
            call = calls[index]
            kind = None if call.root is None else trees[call.root].definition
            if kind is None or call.module:
                continue
            for path, tensor in call.inputs:
                position, dot, rest = path.partition(".")
                named = dict(enumerate(kind.parameters))
                name = position
                if position.isdecimal():
                    name = named.get(int(position), "")
                if name:
                    found.setdefault(tensor.tensor_id, {})[f"{name}{dot}{rest}"] = None
        return found


def count_nbytes(roots: Sequence[ModuleNode]) -> dict[str, int]:
    """Return the bytes of parameters and buffers by dtype, tied ones counted once."""
    nbytes: dict[str, int] = {}
    for tensor in distinct_tensors(roots):
        if tensor.kind != "attribute":
            name = str(tensor.dtype).removeprefix("torch.")
            nbytes[name] = nbytes.get(name, 0) + tensor.nbytes
    return nbytes


def work_payload(works: Sequence[OneCall]) -> dict[str, Any]:
    """Return the work of one call of each signature, and the devices.

    The browser computes the time on a device from both (``static/rooflines.js``).

    Returns:
        For each signature: ``skipped`` (FLOPs that a kernel may leave out),
        ``elementwise`` (operations), ``read`` and ``written`` (bytes), and ``kind``: an
        index into the ``peaks`` of each device, -1 where nothing is multiplied.
        ``devices``: columns of the records of :func:`write_device`.
    """
    kinds: Table[Products] = Table(lambda products: products)
    return {
        "skipped": [one.flops - one.flops_needed for one in works],
        "elementwise": [one.n_elementwise for one in works],
        "read": [one.nbytes_read for one in works],
        "written": [one.nbytes_written for one in works],
        "kind": [
            kinds.of(classify_products(one)) if one.flops else -1 for one in works
        ],
        "devices": as_columns([write_device(d, kinds.rows) for d in list_devices()]),
    }


def write_device(device: Device, kinds: Sequence[Products]) -> dict[str, Any]:
    """Return a device: its bytes, and bytes and operations a second.

    ``peaks`` are, for each kind of products, a dtype and its peak; ``vectors`` is the
    peak of elementwise operations, None if it is not known.
    """
    peaks = [products.find_peak(device) for products in kinds]
    return {
        "name": device.name,
        "title": device.title,
        "nbytes": device.nbytes,
        "bandwidth": device.bandwidth,
        "vectors": find_vector_peak(device),
        "peaks": [(peak.name, peak.flops) for peak in peaks],
    }


def memory_payload(trace: "Trace") -> dict[str, Any]:
    """Return the lives of all storages as columns (``static/memory/lives.js``).

    A stretch is a range of calls during which a storage has the same size.

    Returns:
        ``categories`` and ``places`` (devices): names. For each stretch, in order of
        storage and start: ``storage`` and ``start`` (call) as differences to the
        stretch before, ``length`` (calls; 0 if it lives to the end), and ``nbytes``,
        ``category`` and ``place`` as indices into ``sizes``, ``categories`` and
        ``places``. ``accelerator``: the name of the device with most bytes.
    """
    memory = trace.memory
    lives, n_calls = memory.lives, memory.columns.n_calls
    order = order_stretches(lives)
    storage, start, stop = lives.storage[order], lives.start[order], lives.stop[order]
    sizes: Table[int] = Table(int)
    distinct, number = np.unique(lives.nbytes[order], return_inverse=True)
    return {
        "categories": [*CATEGORIES],
        "places": [*memory.devices],
        "accelerator": find_fullest_device(memory),
        "storage": as_differences(storage),
        "start": as_differences(start),
        "length": np.where(stop >= n_calls, 0, stop - start).tolist(),
        "nbytes": sizes.all_of(distinct.tolist(), number),
        "sizes": sizes.rows,
        "category": memory.category[storage].tolist(),
        "place": memory.device[storage].tolist(),
    }


def world_payload(trace: "Trace") -> dict[str, Any]:
    """Return the world of a trace and its collectives; nothing without a world.

    Returns:
        ``world``, if there is one: ``size``, ``rank``, ``per_node``, ``meshes`` (see
        :func:`write_meshes`) and ``sent``. Of each collective ``ops`` has the operator,
        as the difference to the one before, and ``calls`` an index into the columns of
        the records of :func:`write_sent`.
    """
    world = trace.world
    if world is None:
        return {}
    calls: Table[tuple[Any, ...]] = Table(lambda facts: write_sent(facts, world))
    sent = trace.sent
    return {
        "world": {
            "size": world.size,
            "rank": world.rank,
            "per_node": world.per_node,
            "ops": as_differences([one.index for one in sent]),
            "calls": [*map(calls.of, map(FACTS, sent))],
            "sent": as_columns(calls.rows),
            "meshes": [*write_meshes(trace)],
        }
    }


def write_meshes(trace: "Trace") -> Iterator[dict[str, Any]]:
    """Yield each mesh with what lies on it; at the end what lies on none.

    Yields:
        ``dims``: (name, ranks) of each dimension, and ``rows``: how tensors lie on it,
        how many there are, their bytes on this rank and in all. Else nothing.
    """
    by_mesh: dict[Any, dict[str, list[int]]] = {}
    for tensor in distinct_tensors(trace.modules):
        if tensor.kind == "attribute":
            continue
        rows = by_mesh.setdefault(tensor.mesh, {})
        row = rows.setdefault(describe_sharding(tensor), [0, 0, 0])
        whole = tensor.numel * tensor.dtype.itemsize
        for i, added in enumerate((1, tensor.nbytes, whole)):
            row[i] += added
    for dims in sorted(by_mesh, key=len, reverse=True) if any(by_mesh) else ():
        lying = sorted(by_mesh[dims].items(), key=lambda item: -item[1][1])
        yield {"dims": dims, "rows": [[words, *sums] for words, sums in lying]}


def describe_sharding(tensor: ModuleTensor) -> str:
    """Return how a tensor lies on its mesh: ``Shard(0) on dp, Replicate() on tp``."""
    placements = (tensor.sharding or "").split(", ")
    if len(placements) != len(tensor.mesh):
        return tensor.sharding or "whole on each rank"
    return ", ".join(
        f"{placement} on {name}" if name else placement
        for placement, (name, _) in zip(placements, tensor.mesh, strict=True)
    )


FACTS: Final = attrgetter("kind", "ranks", "peer", "nbytes", "dtype", "reduce")
"""The facts that equal collectives share."""


def write_sent(facts: tuple[Any, ...], world: World) -> dict[str, Any]:
    """Return a collective: its group as text, and how many machines the group spans."""
    kind, ranks, peer, nbytes, dtype, reduce = facts
    return {
        "kind": kind,
        "ranks": describe_ranks(ranks),
        "n_ranks": len(ranks),
        "n_nodes": world.count_nodes(ranks, peer),
        "peer": -1 if peer is None else peer,
        "nbytes": nbytes,
        "dtype": dtype,
        "reduce": reduce or "",
    }
