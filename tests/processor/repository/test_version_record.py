"""One decision about a version: only what a writer makes is read."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.errors import Corrupt
from freshet_serving.processor.repository.log.chain_record import HOLD, RELEASE
from freshet_serving.processor.repository.version_record import WITHDRAW, VersionRecord

THIS, OTHER = "a" * 64, "b" * 64


@settings(max_examples=60, deadline=None)
@given(
    st.builds(
        VersionRecord,
        model=st.just("small"),
        version=st.just(2),
        number=st.just(1),
        action=st.sampled_from([HOLD, WITHDRAW, RELEASE]),
        manifest=st.sampled_from([THIS, OTHER]),
        reason=st.text(max_size=500),
        by=st.text(max_size=64),
        at=st.floats(0, 1e11),
    ),
    st.binary(max_size=40),
    st.integers(0, 600),
)
def test_only_bytes_that_a_writer_makes_are_read(record, junk, cut):
    data = record.to_bytes()
    assert VersionRecord.from_bytes(data, "small", 2, 1) == record
    for other in (data[:cut], data[:cut] + junk + data[cut:], junk):
        if other != data:
            try:
                read = VersionRecord.from_bytes(other, "small", 2, 1)
            except Corrupt:
                continue
            # Junk within a reason makes another reason.
            assert read.to_bytes() == other


@pytest.mark.parametrize(
    "change",
    [{"version": 3}, {"number": 2}, {"model": "other"}, {"action": "keep"}, {"manifest": "A" * 64}, {"at": -1.0},
     {"at": 10**400}, {"reason": "x" * 501}, {"by": "x" * 65}, {"key": "0" * 16}, {"signature": "0" * 128}],
)  # fmt: skip
def test_record_out_of_bounds_is_refused(change):
    record = dataclasses.replace(VersionRecord("small", 2, 1, HOLD, THIS), **change)
    with pytest.raises(Corrupt, match="record 2-1"):
        VersionRecord.from_bytes(record.to_bytes(), "small", 2, 1)
