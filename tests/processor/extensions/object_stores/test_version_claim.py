"""Who writes a version into an object store, and what others, kills, clocks and nonsense make of that."""

import json
import os
import time

import pytest

from freshet_serving.processor.errors import Conflict
from freshet_serving.processor.extensions.object_stores import version_claim
from freshet_serving.processor.extensions.object_stores.version_claim import CLAIM_S, claimed
from tests.support.waiting import until

KEY = "small/1/.claim"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "mirror" / "small" / "1"


def held(bucket, folder):
    with claimed(bucket, "small/1", folder, folder):
        return json.loads(bucket.objects[KEY])["by"]


def test_claim_exists_only_while_its_writer_writes(bucket, folder):
    assert held(bucket, folder)
    assert KEY not in bucket.objects
    assert list(folder.parent.iterdir()) == []


def test_second_writer_is_refused_from_any_mirror(bucket, folder, tmp_path):
    with claimed(bucket, "small/1", folder, folder) as claim:
        for other in (folder, tmp_path / "another mirror" / "small" / "1"):
            with pytest.raises(Conflict, match="being published by another"), claimed(bucket, "small/1", other, other):
                raise AssertionError("two writers")
        claim.check_held()


def test_killed_writer_resumes_its_own_claim(bucket, folder, tmp_path):
    with pytest.raises(KeyboardInterrupt), claimed(bucket, "small/1", folder, folder):
        raise KeyboardInterrupt
    assert KEY in bucket.objects
    with pytest.raises(Conflict), claimed(bucket, "small/1", tmp_path / "another mirror" / "small" / "1", tmp_path):
        raise AssertionError("it is claimed")
    assert held(bucket, folder)


def test_expired_claim_is_taken_over_and_its_former_holder_fails(bucket, folder, tmp_path, monkeypatch):
    now_s = time.time()
    with claimed(bucket, "small/1", folder, folder) as claim:
        monkeypatch.setattr(version_claim.time, "time", lambda: now_s + CLAIM_S + 1)
        with claimed(bucket, "small/1", tmp_path / "another mirror" / "small" / "1", tmp_path):
            with pytest.raises(Conflict):
                claim.check_held()
            with pytest.raises(Conflict):
                claim.renew()
        monkeypatch.setattr(version_claim.time, "time", lambda: now_s)


def test_renewed_claim_is_as_good_as_new(bucket, folder, tmp_path, monkeypatch):
    now_s = time.time()
    with claimed(bucket, "small/1", folder, folder) as claim:
        monkeypatch.setattr(version_claim.time, "time", lambda: now_s + CLAIM_S - 1)
        claim.renew()
        monkeypatch.setattr(version_claim.time, "time", lambda: now_s + CLAIM_S + 1)
        with pytest.raises(Conflict), claimed(bucket, "small/1", tmp_path / "other" / "small" / "1", tmp_path):
            raise AssertionError("it is claimed")


@pytest.mark.parametrize("at", ['"x"', "null", "[]", "{}", "1e400", "-1e400", "NaN", "99999999999", "true", "1" * 400])
def test_claim_with_an_invalid_time_blocks_no_writer(bucket, folder, at):
    bucket.objects[KEY] = b'{"by":"somebody","at":%s}' % at.encode()
    assert held(bucket, folder)


@pytest.mark.parametrize("claim", [b"", b"\xff", b"[1]", b"[" * 900, bytes(20_000)])
def test_malformed_claim_blocks_no_writer(bucket, folder, claim):
    bucket.objects[KEY] = claim
    assert held(bucket, folder)


def test_symbolic_link_in_place_of_the_token_is_not_followed(bucket, folder, tmp_path):
    folder.parent.mkdir(parents=True)
    (tmp_path / "secret").write_text("of somebody")
    (folder.parent / ".1.claim").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic"):
        held(bucket, folder)
    assert (tmp_path / "secret").read_text() == "of somebody"


def test_folder_of_a_long_upload_is_not_treated_as_abandoned(bucket, folder, tmp_path, monkeypatch):
    built = tmp_path / "built"
    built.mkdir()
    os.utime(built, (0, 0))
    monkeypatch.setattr(version_claim, "RENEW_S", 0.01)
    with claimed(bucket, "small/1", folder, built):
        until(lambda: built.stat().st_mtime > 0)
