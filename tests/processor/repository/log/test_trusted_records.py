"""Records where signatures are required: whose are accepted, and when nothing looks at signatures at all."""

import pytest

from freshet_serving.processor.errors import Conflict, Corrupt
from freshet_serving.processor.repository import NO_KEYS, Repository
from freshet_serving.processor.repository.log.chain_record import root_hash
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.log_reader import LogReader
from freshet_serving.processor.repository.log.trusted_records import TrustedRecords
from tests.support.packages import write_package
from tests.support.signing import reads, signed_delta, writes


def opened(root, keyring):
    return Repository(root).with_keys(keyring).version("small", 1)


@pytest.fixture
def signed(tmp_path):
    write_package(tmp_path, users=range(2), keyring=writes())
    signed_delta(tmp_path, 1)
    return tmp_path


def record_of(root):
    change_log = ChangeLog(opened(root, NO_KEYS))
    (record,) = change_log.look()
    return record


def test_record_of_a_trusted_key_is_accepted_and_a_changed_one_is_not(signed):
    version, record = opened(signed, reads()), record_of(signed)
    trusted = TrustedRecords(version, root_hash(version.root_manifest))
    trusted.check_record(record, record.to_bytes())
    with pytest.raises(Corrupt, match="signature"):
        TrustedRecords(version, "ab" * 32).check_record(record, record.to_bytes())


def test_file_without_a_record_is_not_adopted_beside_signed_ones(signed):
    version = opened(signed, NO_KEYS)
    with pytest.raises(Conflict, match="expected a signed record"):
        TrustedRecords(version, root_hash(version.root_manifest)).check_adoption()


@pytest.mark.parametrize(("keys", "looks"), [("none", False), ("memory", True), ("trusted", True)])
def test_log_looks_at_signatures_only_where_keys_ask_for_it(tmp_path, keys, looks):
    write_package(tmp_path, users=range(2))
    version = opened(tmp_path, NO_KEYS)
    version.keyring = {"none": NO_KEYS, "memory": reads(memory=tmp_path / "memory"), "trusted": reads()}[keys]
    assert (LogReader(version)._trusted is not None) == looks


def test_log_of_a_signed_version_looks_at_signatures_without_keys(signed):
    assert LogReader(opened(signed, NO_KEYS))._trusted is not None
