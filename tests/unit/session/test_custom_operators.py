"""Operators that are not torch's, and whose sizes depend on data."""

import pytest
import torch

from meta_magic import record


@pytest.fixture(scope="module")
def keep():
    """Return an operator that keeps what is positive, and knows of no meta device."""

    @torch.library.custom_op("meta_magic_tests::keep", mutates_args=())
    def keep(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].clone()

    return keep


def test_a_custom_operator_is_run_on_values_where_it_has_no_kernel_for_meta(keep):
    def run():
        kept = keep(torch.tensor([1.0, -1.0, 2.0]))
        return kept * 2

    with record() as trace:
        made = run()
        assert made.is_meta
        assert made.tolist() == run().tolist() == [2.0, 4.0]
    assert any("meta_magic_tests.keep" in call.op for call in trace.ops)


def test_a_custom_operator_of_other_data_has_another_size(keep):
    def sizes():
        data = [1.0, -1.0, 2.0], [1.0, 1.0, 2.0], [-1.0, -1.0, -2.0]
        return [len(keep(torch.tensor(values))) for values in data]

    with record():
        assert sizes() == [2, 3, 0]
