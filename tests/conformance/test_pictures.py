"""Pictures of some operators are true: torch computes the same from what they mark.

All operators: ``python -m tests.conformance.pictures``.
"""

import shutil

import pytest

from tests.conformance.operator_samples import OPERATORS, full_name
from tests.conformance.pictures import compare_operator

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js here"),
]
NAMES = (
    *("add", "where", "permute", "narrow", "as_strided", "cat", "stack", "flip"),
    *("gather", "index_select", "sum", "amax", "cumsum", "matmul", "baddbmm"),
    *("nn.functional.conv2d", "nn.functional.max_pool2d", "nn.functional.embedding"),
)
CHOSEN = [op for op in OPERATORS if op.name in NAMES and not op.variant_test_name]


@pytest.mark.parametrize("operator", CHOSEN, ids=full_name)
def test_torch_computes_the_same_from_what_a_picture_marks(operator):
    verdicts = [verdict for *_, verdict in compare_operator(operator, 3)]
    assert "equal" in verdicts
    assert set(verdicts) <= {"equal", "large"}
