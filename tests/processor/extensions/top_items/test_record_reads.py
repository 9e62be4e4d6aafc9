"""Bits by position, and records by key."""

import numpy as np

from freshet_serving.processor.extensions.top_items import record_reads
from tests.support.packages import open_version
from tests.support.ranked import ranked_delta, records_of, write_ranked


def test_bits_are_set_and_cleared_alone():
    words = np.zeros(3, np.int64)
    record_reads.write_bits(words, np.array([0, 63, 64, 130]), True)
    record_reads.write_bits(words, np.array([63, 129]), False)
    copied = np.zeros(2, np.int64)
    record_reads.copy_words(words, copied)
    assert (words.tolist(), copied.tolist()) == ([1, 1, 4], [1, 1])


def test_records_are_read_as_of_an_epoch(tmp_path):
    version = open_version(write_ranked(tmp_path, range(9), recorded=range(4)), 4)
    made, table = version.manifest, version.tables["entities.item"]
    version.apply(ranked_delta(1, recorded=[2, 7], unrecorded=[3]))
    records, there = np.zeros((6, made.tables[1].dim), np.int32), np.zeros(6, np.bool_)
    keys = np.array([0, 2, 3, 7, 8, 0])
    record_reads.read_records(np.array(table.descriptor()), version.change.epoch, keys, records, there)
    assert there.tolist() == [True, True, False, True, False, True]
    assert np.array_equal(records[[0, 5]], records_of(made, [0, 0], 0))
    assert np.array_equal(records[[1, 3]], records_of(made, [2, 7], 1))
    record_reads.read_records(np.array(table.descriptor()), version.change.epoch - 1, keys, records, there)
    assert there.tolist() == [True, True, True, False, False, True]
