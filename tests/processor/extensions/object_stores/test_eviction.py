"""What goes of a mirror that takes more than it may, and what does not."""

import os
import time

import pytest

from freshet_serving.processor.extensions.object_stores.eviction import LEFT_S, evict, total_nbytes
from tests.processor.extensions.object_stores.bucket import Bucket
from tests.processor.extensions.object_stores.sides import opened, publish

ALL = 1 << 40


@pytest.fixture
def bucket(tmp_path):
    bucket = Bucket()
    for version in (1, 2, 3):
        publish(opened(bucket, tmp_path / "trainer"), tmp_path, version=version, users=range(20))
    return bucket


@pytest.fixture
def mirror(bucket, tmp_path):
    """With three versions, of which none is needed."""
    mirror = opened(bucket, tmp_path / "server").mirror
    mirror.listing.models()
    for version in (1, 2, 3):
        mirror.prepare("small", version)
    return mirror


def there(mirror):
    return [n for n in (1, 2, 3) if (mirror.root / "small" / str(n) / "tables").exists()]


def test_least_recently_needed_versions_are_evicted_and_leased_ones_stay(mirror):
    for at_s, version in enumerate((2, 3, 1)):
        mirror.storage("small", version).release()
        os.utime(mirror.root / "small" / str(version) / ".lease", (at_s, at_s))
    mirror.storage("small", 3).lease()
    evict(mirror.root, [], 1)
    assert there(mirror) == [1, 3]
    evict(mirror.root, [], ALL)
    assert there(mirror) == [3]


def test_lease_of_a_wiped_folder_is_taken_again(mirror, bucket, tmp_path):
    other = opened(bucket, tmp_path / "server").mirror
    other.storage("small", 1).wipe()
    mirror.prepare("small", 1)
    evict(mirror.root, [], ALL)
    assert 1 in there(mirror)


def test_leftovers_of_a_killed_process_are_evicted_first_once_old(mirror):
    old = time.time() - 2 * LEFT_S
    file = mirror.root / "small" / "1" / "tables" / ".user.safetensors.0123abcd.tmp"
    folder = mirror.root / "small" / ".7.0123abcd.tmp"
    young = mirror.root / "small" / "2" / "tables" / ".user.safetensors.0123abce.tmp"
    folder.mkdir()
    for path in (file, folder / "big", young):
        path.write_bytes(bytes(1000))
    for path in (file, folder / "big", folder):
        os.utime(path, (old, old))
    before = total_nbytes(mirror.root)
    assert evict(mirror.root, [], 1) == 2000
    assert (file.exists(), folder.exists(), young.exists()) == (False, False, True)
    assert before - total_nbytes(mirror.root) == 2000
    assert there(mirror) == [1, 2, 3]


def test_symbolic_link_in_place_of_a_version_is_not_followed(mirror, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis").write_text("years")
    (mirror.root / "small" / "5").symlink_to(home)
    evict(mirror.root, [], ALL)
    assert (home / "thesis").read_text() == "years"
