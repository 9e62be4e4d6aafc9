import os

import numpy as np
import pytest

from freshet_serving.processor.memory import place_in_file, reserve, share
from freshet_serving.serving.workers.array_packing import ArrayPacker, ArrayUnpacker
from tests.serving.workers import channel_ends
from tests.serving.workers.channel_ends import memfd
from tests.support.descriptors import open_fds, settled_fds


@pytest.fixture
def ends():
    with channel_ends.ends() as both:
        yield both


def test_arrays_of_one_reservation_share_one_descriptor_and_memory(ends):
    here, other = ends
    memory = reserve(4096, "test")
    first, second = memory[:800].view(np.int64), memory[1024:1048].view(np.float32).reshape(2, 3)
    handles = share([first, second, np.arange(3)], "test")
    parcel = ArrayPacker()
    packed = [parcel.pack(handles[0]), parcel.pack(handles[1], writable=True), parcel.pack(handles[2])]
    assert len(parcel.fds) == 2
    before = settled_fds()
    here.send({"arrays": packed}, parcel.fds)
    message, fds = other.receive()
    with ArrayUnpacker(fds) as unpacker:
        arrays = [unpacker.unpack(p) for p in message["arrays"]]
    first[3], second[1, 2] = 33, 1.5
    assert arrays[0][3] == 33
    assert arrays[1].tolist() == second.tolist()
    assert arrays[2].tolist() == [0, 1, 2]
    assert [a.flags.writeable for a in arrays] == [False, True, False]
    # What is written can be locked by its place in the file, the same in both processes.
    fd, first_byte = place_in_file(arrays[1])
    assert os.fstat(fd).st_ino == os.fstat(place_in_file(second)[0]).st_ino
    assert first_byte == place_in_file(second)[1]
    arrays[1][0, 0] = 2.5
    assert second[0, 0] == 2.5
    del arrays
    del unpacker
    assert open_fds() == before


def test_invalid_array_description_is_refused():
    with ArrayUnpacker([memfd(b"x" * 100)]) as unpacker:
        for packed in ([1, 0, "<i8", [1], False], [0, 96, "<i8", [1], False], [0, -8, "<i8", [1], False]):
            with pytest.raises((ValueError, IndexError)):
                unpacker.unpack(packed)
