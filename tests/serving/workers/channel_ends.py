"""Both ends of a channel, and memory to send over it."""

import os
from contextlib import contextmanager

from freshet_serving.serving.workers.channel import Channel


@contextmanager
def ends():
    here, there = Channel.pair()
    other = Channel(there)
    yield here, other
    here.close()
    other.close()


def memfd(content):
    fd = os.memfd_create("test")
    os.write(fd, content)
    return fd
