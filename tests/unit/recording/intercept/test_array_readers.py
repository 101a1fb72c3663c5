"""Who reads a tensor as an array: numpy, pandas, matplotlib, Pillow, as on the CPU."""

import io

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from meta_magic import record


def count_pairs():
    """Return counts that plain Python made, as of pairs of letters."""
    counts = torch.zeros(3, 3, dtype=torch.int32)
    for first, second in ((0, 1), (1, 2), (0, 1)):
        counts[first, second] += 1
    return counts


MAKERS = {
    "counts": count_pairs,
    "int64": lambda: torch.arange(12).view(3, 4),
    "int8": lambda: torch.arange(-6, 6, dtype=torch.int8).view(3, 4),
    "uint8": lambda: torch.arange(12, dtype=torch.uint8).view(3, 4),
    "bool": lambda: torch.arange(12).view(3, 4) > 4,
    "half": lambda: torch.arange(12.0).half().view(3, 4),
    "drawn": lambda: torch.randn(3, 4),
    "view": lambda: torch.arange(24).view(4, 6)[1:, 1:5],
    "transposed": lambda: torch.arange(12).view(4, 3).t(),
    "expanded": lambda: torch.arange(4).expand(3, 4),
    "steps": lambda: torch.arange(24.0)[::2].view(3, 4),
    "vector": lambda: torch.arange(5.0),
    "number": lambda: torch.tensor(3),
    "bfloat16": lambda: torch.ones(3, 4).bfloat16(),
    "of a graph": lambda: torch.ones(3, 4, requires_grad=True),
    "conjugated": lambda: torch.randn(3, 4, dtype=torch.cfloat).conj(),
    "negated": lambda: torch.randn(3, 4, dtype=torch.cfloat).conj().imag,
}


def draw(how):
    """Return the pixels of a plot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1, 1))
    canvas = FigureCanvasAgg(figure)
    how(figure.add_subplot())
    canvas.draw()
    return bytes(canvas.buffer_rgba())


def save(tensor):
    """Return the file that numpy writes of a tensor."""
    file = io.BytesIO()
    np.save(file, tensor)
    return file.getvalue()


READERS = {
    "asarray": np.asarray,
    "array of a dtype": lambda x: np.array(x, dtype=np.float64),
    "forced": lambda x: x.numpy(force=True),
    "dlpack": np.from_dlpack,
    "sum": np.sum,
    "concatenate": lambda x: np.concatenate([x, x]),
    "save": save,
    "index": lambda x: np.arange(100)[x],
    "frame": pd.DataFrame,
    "series": pd.Series,
    "image": lambda x: Image.fromarray(x.numpy()).tobytes(),
    "imshow": lambda x: draw(lambda axes: axes.imshow(x)),
    "plot": lambda x: draw(lambda axes: axes.plot(x)),
    "hist": lambda x: draw(lambda axes: axes.hist(x)),
    "scatter": lambda x: draw(lambda axes: axes.scatter(x, x)),
}


def run(make, read):
    """Return what a reader gets of a tensor, with type and layout, or its error."""
    torch.manual_seed(0)
    try:
        found = read(make())
    except (BufferError, RuntimeError, TypeError, ValueError, IndexError) as error:
        return type(error), str(error)
    if isinstance(found, np.ndarray):
        return found.dtype, found.shape, found.strides, found.tobytes()
    if isinstance(found, pd.DataFrame | pd.Series):
        return found.to_csv(), str(found.dtypes)
    return type(found), str(found)


OTHERS = {
    ("number", "series"),  # holds the tensor, whose text has its device
    ("negated", "dlpack"),  # has other strides
}


@pytest.mark.parametrize("made", MAKERS)
@pytest.mark.filterwarnings("ignore")  # of numpy and matplotlib, which are the CPU's
def test_arrays_of_a_tensor_are_those_of_the_cpu(made):
    readers = {name: READERS[name] for name in READERS if (made, name) not in OTHERS}
    with record():
        recorded = {name: run(MAKERS[made], read) for name, read in readers.items()}
    assert recorded == {name: run(MAKERS[made], readers[name]) for name in readers}
