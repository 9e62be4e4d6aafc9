"""Reserved memory: zeroed, aligned, sparse until it is written."""

import mmap
import os
import subprocess
import sys

import numpy as np
import pytest

from freshet_serving.processor.memory import advise, attach, gather, pieces, private_copy, reserve, share
from freshet_serving.processor.package.tensors import map_file
from tests.support.descriptors import open_fds, settled_fds

ALLOCATING = """
import numpy as np
from freshet_serving.processor.memory import return_large_blocks
from tests.processor.test_memory import resident_nbytes
return_large_blocks()
before = resident_nbytes()
# Blocks of other sizes: each that is freed would raise the C library's bound.
for mib in (30, 24, 20):
    kept = []
    for _ in range(2):
        kept.append(np.ones(mib << 20, np.uint8))
    del kept
print(resident_nbytes() - before)
"""


def resident_nbytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_large_freed_blocks_return_to_the_system():
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATING], env=environment, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 8 << 20


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 4097, 1 << 20])
def test_reservation_is_zeroed_writable_and_page_aligned(nbytes):
    buffer = reserve(nbytes, "test")
    assert buffer.nbytes >= max(1, nbytes)
    assert buffer.ctypes.data % mmap.PAGESIZE == 0
    assert not buffer.any()
    buffer[-1] = 7
    assert buffer[-1] == 7


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_huge_reservation_costs_only_written_pages():
    before, files = resident_nbytes(), settled_fds()
    buffer = reserve(64 << 30, "test")
    buffer[:: 8 << 30] = 1
    assert resident_nbytes() - before < 64 << 20
    assert open_fds() <= files + 2, "one mapping holds two descriptors at most"
    assert buffer[:: 8 << 30].tolist() == [1] * 8


def test_reservations_do_not_share_memory():
    first, second = reserve(4096, "same"), reserve(4096, "same")
    first[:] = 1
    assert not second.any()


def test_memory_lives_as_long_as_a_view_of_it():
    view = reserve(1 << 16, "test").view(np.int64)[5:10]
    view[:] = [1, 2, 3, 4, 5]
    reserve(1 << 16, "test")[:] = 255
    assert view.tolist() == [1, 2, 3, 4, 5]


def test_private_copy_is_writable_and_leaves_its_source_unchanged():
    source = np.arange(12, dtype=np.int64).reshape(6, 2)
    source.flags.writeable = False
    copy = private_copy(source, "test")
    np.testing.assert_array_equal(copy, source)
    copy[0, 0] = 99
    assert source[0, 0] == 0
    assert copy.flags.c_contiguous


def test_pieces_of_a_mapped_view_equal_its_bytes_unless_truncated(tmp_path, monkeypatch):
    monkeypatch.setattr("freshet_serving.processor.memory.PIECE_NBYTES", 64)
    data = np.arange(100, dtype=np.int64)
    (tmp_path / "file").write_bytes(b"12345678" + data.tobytes())
    view = map_file(tmp_path / "file")[8:].view(np.int64)[3:90].reshape(29, 3)
    for array in (view, np.array(view), reserve(4096, "test", [np.arange(7, dtype=np.uint8)])):
        assert b"".join(piece.tobytes() for piece in pieces(array)) == array.tobytes()
    np.testing.assert_array_equal(private_copy(view, "test"), view)
    os.truncate(tmp_path / "file", 100)
    with pytest.raises(OSError, match="cut short"):
        private_copy(view, "test")


def test_gathered_arrays_share_one_shareable_mapping():
    arrays = [np.arange(5.0), np.zeros(0, np.int8), np.arange(12).reshape(3, 4)[:, ::2]]
    copies = gather(arrays, "test")
    assert len({id(handle.mapping) for handle in share(copies, "again")}) == 1
    for array, copy in zip(arrays, copies):
        np.testing.assert_array_equal(copy, array)


def test_empty_array_can_be_copied():
    assert private_copy(np.empty((0, 2), np.int64), "test").shape == (0, 2)


def attached(handle, writable=False):
    """The handle's bytes as another process would map them."""
    nbytes = os.fstat(handle.mapping.fd).st_size
    mapped = mmap.mmap(handle.mapping.fd, nbytes, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    return attach(mapped, handle.offset, handle.dtype, handle.shape)


def test_views_of_one_reservation_are_shared_in_place():
    view = reserve(1 << 16, "test").view(np.int64)[8:14].reshape(3, 2)
    (handle,) = share([view], "test")
    other = attached(handle, writable=True)
    view[1] = 7
    other[2] = 9
    assert other.tolist() == view.tolist() == [[0, 0], [7, 7], [9, 9]]


def test_memory_attached_for_reading_cannot_be_written():
    (handle,) = share([reserve(4096, "test")], "test")
    with pytest.raises(ValueError, match="read-only"):
        attached(handle)[0] = 1


def test_mapped_file_is_shared_by_inode_after_a_replacement(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    view = map_file(path)[10:20]
    (tmp_path / "new").write_bytes(b"x" * 100)
    os.replace(tmp_path / "new", path)
    (handle,) = share([view], "test")
    assert attached(handle).tolist() == list(range(10, 20))


def test_unshared_arrays_are_copied_together():
    arrays = [np.arange(5.0), np.zeros(0, np.int8), np.arange(12).reshape(3, 4)[:, ::2]]
    handles = share(arrays, "test")
    assert len({id(h.mapping) for h in handles}) == 1
    for array, handle in zip(arrays, handles):
        np.testing.assert_array_equal(attached(handle), array)


def test_handle_pointing_outside_its_file_is_refused():
    buffer = reserve(4096, "test")
    for offset, shape in ((-8, (1,)), (4096, (1,)), (4089, (1,)), (0, (1 << 40,))):
        with pytest.raises(ValueError, match="outside"):
            attach(buffer, offset, "<i8", shape)


def test_descriptors_are_closed_with_the_last_view():
    before = settled_fds()
    view = reserve(4096, "test")[8:16]
    handles = share([view], "test")
    del view
    assert open_fds() > before
    del handles
    assert open_fds() == before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="madvise")
def test_dropping_pages_changes_no_values_of_any_memory_kind(tmp_path):
    (tmp_path / "file").write_bytes(bytes(range(256)) * 64)
    reserved = reserve(1 << 14, "test")
    reserved[:] = 7
    for array in (np.full(1 << 14, 7, np.uint8), reserved, map_file(tmp_path / "file"), np.empty(0, np.uint8)):
        wanted = array.tobytes()
        advise(array[100:], mmap.MADV_DONTNEED)
        assert array.tobytes() == wanted


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_dropped_pages_of_a_file_are_not_resident(tmp_path):
    with open(tmp_path / "file", "wb") as file:
        file.write(bytes(32 << 20))
    mapped = map_file(tmp_path / "file")
    assert not mapped.any()
    before = resident_nbytes()
    advise(mapped, mmap.MADV_DONTNEED)
    assert before - resident_nbytes() > 16 << 20
