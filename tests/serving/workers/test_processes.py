"""Replicas in another process while a writer flips, rolls back and reuses slots here."""

import subprocess
import sys
from pathlib import Path

import pytest

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.repository.version import VersionReader
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.serving.workers.channel import Channel
from freshet_serving.serving.workers.frame_transfer import FrameSender
from tests.support.packages import make_delta, write_package

ROOT = Path(__file__).parents[3]
FLIPS, MEETINGS = 200, 20
"""At each meeting the readers are waited for, so that they meet a generation of that time on any machine."""
USERS = range(16)


class Child:
    """processor.versions.replica.Replicas: one process of tests.serving.workers.reading."""

    def __init__(self, version):
        self.channel, there = Channel.pair()
        with there:
            command = [sys.executable, "-m", "tests.serving.workers.reading", str(there.fileno()), str(len(USERS))]
            self.process = subprocess.Popen(command, cwd=ROOT, pass_fds=(there.fileno(),))
        self.sender, self.held, self.cost = FrameSender(version.files, version.control), frozenset(), {}
        self.ask("open", *self.sender.opening(0))

    def ask(self, op, message=None, fds=()):
        self.channel.send({**(message or {}), "op": op}, fds)
        return self.channel.receive()[0]

    def prepare(self, frame):
        outgoing = self.sender.number(frame)
        self.ask("frame", *self.sender.message(outgoing, self.held))
        self.held = outgoing.numbers
        self.sender.settle(outgoing)

    def forget(self, frame):
        self.ask("forget", {"frame": frame})

    def close(self):
        pass


@pytest.mark.parametrize("undo_depth", [0, 2])
def test_every_batch_of_another_process_has_one_consistent_generation(tmp_path, undo_depth):
    version = ServedVersion(VersionReader(write_package(tmp_path, users=USERS)), undo_depth, SystemClock())
    child = Child(version)
    try:
        version.attach_replicas(child)
        child.ask("start")
        step = flips = 0
        for turn in range(FLIPS):
            step += 1
            # A content that fits float32 exactly, whatever the step: reading.py computes the same.
            version.apply(make_delta(step, USERS, tag=step % 97))
            flips += 1
            if undo_depth and flips % 7 == 0:
                version.rollback(step - 2)
                step -= 2
                flips += 1
            if turn % (FLIPS // MEETINGS) == 0:
                child.ask("meet")
        said = child.ask("end")
    finally:
        child.channel.close()
        child.process.kill()
        child.process.wait()
    assert not said["problems"]
    assert said["generations"] >= MEETINGS
    assert version.tables["user"]._slots.bump <= len(USERS) * (undo_depth + 6), "slots are reused"
