"""What a lesson says after a wrong shape, by the kind of picture and of mistake."""

from collections.abc import Mapping
from typing import Final

SHAPE_WHYS: Final[Mapping[str, Mapping[str, str]]] = {
    "broadcast": {
        "rank": "The result has as many dimensions as the tensor with the most.",
        "order": "Sizes keep their column when shapes are aligned from the right.",
        "size": "In each column the larger size stays; the other one is 1 or missing.",
    },
    "product": {
        "rank": "Summed dimensions disappear; all others stay, a shared one once.",
        "order": "Rows come from the left tensor, columns from the right one.",
        "size": "The summed size is not in the result; all others are.",
    },
    "einsum": {
        "rank": "A letter that is not after the arrow is summed; all others stay.",
        "order": "The letters after the arrow say the order.",
        "size": "Each letter is a dimension, of the same size wherever it stands.",
    },
    "linear": {
        "rank": "A layer keeps all dimensions.",
        "order": "The dimensions before the last keep their order.",
        "size": "The last size becomes the first size of the weight; the others stay.",
    },
    "window": {
        "rank": "A window keeps the number of dimensions.",
        "order": "Batch, then channels, then the window's dimensions.",
        "size": "A window of k fits (n + 2·padding - k) // stride + 1 times.",
    },
    "reduction": {
        "rank": "Each reduced dimension goes; with keepdim=True it stays as 1.",
        "order": "The other dimensions keep their order.",
        "size": "What is reduced is gone; the other sizes stay.",
    },
    "join": {
        "rank": "cat keeps the number of dimensions; stack adds one.",
        "order": "The inputs are joined in the dimension that dim names.",
        "size": "cat adds up the sizes in dim; stack counts the inputs there.",
    },
    "pick": {
        "rank": "The index's dimensions stand where the indexed ones were.",
        "order": "What is not indexed keeps its order.",
        "size": "The index's shape says how many are taken.",
    },
    "gather": {
        "rank": "The result has as many dimensions as the index.",
        "order": "The result has the shape of the index.",
        "size": "The result has the shape of the index.",
    },
    "copy": {
        "rank": "A repeat has as many dimensions as it is given numbers, or more.",
        "order": "The dimensions keep their order.",
        "size": "repeat multiplies sizes, padding is added to them at both ends.",
    },
    "memory": {
        "rank": "None and unsqueeze add a dimension; a number as an index and squeeze "
        "take one away; view, reshape and expand have one for each number.",
        "order": "The other dimensions keep their order.",
        "size": "A view and a reshape have as many elements as before, a slice fewer.",
    },
}
"""By kind of picture, or by function where its own texts are better."""
