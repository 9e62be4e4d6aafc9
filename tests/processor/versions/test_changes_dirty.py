"""Which changes have the log read anew."""

import pytest

from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.versions.changes import DirtyVersions


def test_only_unexpected_failures_reload_the_log():
    read = []
    doubts = DirtyVersions(read.append)
    with doubts.changing(1):
        pass
    with pytest.raises(NotReady), doubts.changing(1):
        raise NotReady("planned")
    with pytest.raises(MemoryError), doubts.changing(1):
        raise MemoryError
    with doubts.changing(2):
        pass
    assert read == []
    for _ in range(2):
        with doubts.changing(1):
            pass
    assert read == [1]


def test_log_that_cannot_be_reloaded_stays_marked_dirty():
    reads = []

    def reload_log(number):
        reads.append(number)
        if len(reads) == 1:
            raise MemoryError

    doubts = DirtyVersions(reload_log)
    with pytest.raises(MemoryError), doubts.changing(1):
        raise MemoryError
    with pytest.raises(MemoryError), doubts.changing(1):
        pytest.fail("it was not read")
    with doubts.changing(1):
        pass
    assert reads == [1, 1]
