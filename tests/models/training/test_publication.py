"""What a trainer's tables become in a package; the rest of publication is test_loop.py's and test_parity.py's."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="publishing needs the train extra")

from models.training.publication import MOST_COUNTED, _packed
from tests.packages import manifest, rows_of

pytestmark = pytest.mark.tensorflow


def test_counts_that_no_table_file_can_hold_are_the_most_that_it_can():
    keys, none = np.arange(4, dtype=np.int64), np.empty(0, np.int64)
    tables = {"user": (keys, rows_of(keys, 0)), "tag": (none, rows_of(none, 0))}
    met = np.array([0, MOST_COUNTED, MOST_COUNTED + 1, 2**40], np.int64)
    packed = dict(_packed(manifest(), tables, {"user": met}))
    assert packed["user"]["frequencies"].tolist() == [0, MOST_COUNTED, MOST_COUNTED, MOST_COUNTED]
    assert "frequencies" not in packed["tag"]
