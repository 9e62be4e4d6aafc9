"""Keys of tables in a publisher: integers to the bit."""

import dataclasses

import numpy as np
import pytest

from freshet_serving.models.publishing.key_ids import as_ids
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Feature, Input, Manifest, Output, TableEntry

UNSIGNED = Manifest(
    "m",
    1,
    "imported",
    0.0,
    [Input("id", "int64", declared="uint64")],
    [Feature("id", "id", "id", table="t", offset=0, width=2)],
    [TableEntry("t", 2, 0, "float32")],
    [Output("score")],
    2,
    {},
    {},
)


@pytest.mark.parametrize("keys", [[5, 2**63, 2**64 - 1], np.array([5, 2**63, 2**64 - 1], np.uint64)])
def test_keys_of_a_declared_uint64_carry_its_bits(keys):
    assert as_ids(UNSIGNED, "t", keys).tolist() == [5, -(2**63), -1]


@pytest.mark.parametrize("keys", [[-1], np.array([3, -1])])
def test_negative_key_of_a_declared_uint64_is_refused(keys):
    with pytest.raises(BadInput, match=r"'t': expected keys from 0 to 18446744073709551615, got -1"):
        as_ids(UNSIGNED, "t", keys)


def test_none_is_the_key_of_the_row_of_unknown_keys():
    with pytest.raises(BadInput, match=r"table 't': expected a key, got None: .* import the model again"):
        as_ids(UNSIGNED, "t", [3, None])
    shared = dataclasses.replace(UNSIGNED, tables=[dataclasses.replace(UNSIGNED.tables[0], unknown_key=-7)])
    assert as_ids(shared, "t", [3, None]).tolist() == [3, -7]


@pytest.mark.parametrize("keys", [[2**70], [[1], [2, 3]]])
def test_keys_that_are_no_whole_numbers_of_64_bits_are_refused(keys):
    with pytest.raises(BadInput, match=r"table 't': expected integers, str or bytes as keys"):
        as_ids(UNSIGNED, "t", keys)
