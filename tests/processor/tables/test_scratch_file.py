"""A file without a name: only what was asked for takes space."""

import mmap
import os

import pytest

from freshet_serving.processor.tables.scratch_file import ScratchFile
from tests.support.descriptors import open_fds, settled_fds


def test_scratch_file_has_no_name_and_uses_only_requested_space(tmp_path):
    scratch = ScratchFile(tmp_path, 1 << 40)
    assert os.listdir(tmp_path) == []
    scratch.take(1 << 20, 1 << 16)
    scratch.array[1 << 20 : (1 << 20) + 4] = 5
    assert scratch.array[(1 << 20) - 1 : (1 << 20) + 5].tolist() == [0, 5, 5, 5, 5, 0]
    scratch.punch_hole(1 << 20, 1 << 16)
    assert scratch.array[1 << 20] in (0, 5), "zero where the file system can punch holes"
    scratch.array[: 3 * mmap.PAGESIZE] = 5
    scratch.punch_hole(0, 100)
    scratch.punch_hole(mmap.PAGESIZE - 1, mmap.PAGESIZE)
    assert (scratch.array[: 3 * mmap.PAGESIZE] == 5).all(), "parts of pages stay"
    files = settled_fds()
    del scratch
    assert open_fds() < files


def test_scratch_file_in_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(OSError):
        ScratchFile(tmp_path / "missing", 4096)
