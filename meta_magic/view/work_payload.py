"""What calls compute and move, and what devices do in a second, on the wire.

How long a device takes at least follows from the two, and is worked out in the browser
(``static/rooflines.js``), for whichever device is chosen there.
"""

from collections.abc import Sequence
from typing import Any

from meta_magic.cost.call_work import OneCall
from meta_magic.cost.device_table import Device, list_devices
from meta_magic.cost.rooflines import (
    Products,
    classify_products,
    find_peak,
    find_vector_peak,
)
from meta_magic.view.wire import Table, as_columns

__all__ = ["work_payload"]


def work_payload(works: Sequence[OneCall]) -> dict[str, Any]:
    """Return what one call of each signature computes and moves, and the devices.

    Args:
        works: Of each signature.

    Returns:
        For each signature, beside its FLOPs: ``skipped`` (FLOPs of these that a kernel
        may leave out), ``elementwise`` (operations), ``read`` and ``written`` (bytes),
        and ``kind``: an index into the ``peaks`` of each device, -1 where nothing is
        multiplied. ``devices``: columns of what :func:`write_device` returns.
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
    """Return a device: bytes, and bytes and operations in a second.

    ``peaks`` are, for each kind of products, the dtype whose peak it is and that peak;
    ``vectors`` that of what is computed element by element, None if nobody told it.
    """
    peaks = [find_peak(products, device, tf32=False) for products in kinds]
    return {
        "name": device.name,
        "title": device.title,
        "nbytes": device.nbytes,
        "bandwidth": device.bandwidth,
        "vectors": find_vector_peak(device),
        "peaks": [(peak.name, peak.flops) for peak in peaks],
    }
