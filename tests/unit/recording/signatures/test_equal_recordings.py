"""The same program gives the same record, whatever was recorded before."""

import torch

from meta_magic.recording.signatures.operator_keys import build_operator_key


def test_an_argument_that_is_no_plain_value_is_not_told_by_its_address():
    generators = torch.Generator(), torch.Generator()
    keys = [build_operator_key(None, (2, g), None, []) for g in generators]
    assert keys[0] == keys[1]
