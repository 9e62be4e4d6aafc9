"""A process killed at any system call of a decision about a version leaves one of two states, and starts again."""

import os
import shutil
import signal
from functools import partial

import pytest

from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.versions.version_actions import reject_version, release_version
from freshet_serving.processor.versions.version_rollback import RollbackTarget, roll_back
from tests.processor.extensions.guard.test_version_gate import asked, write_bad
from tests.processor.repository.test_candidates import commit
from tests.processor.versions.models import USERS, open_model, publish
from tests.support.guarded import write_guarded
from tests.support.packages import write_package

pytestmark = pytest.mark.long

CALLS = ("rename", "replace", "link", "fsync")
"""The calls by which a process changes, or makes durable, what others see."""
GIVE_UP_S = 60


def killed(act, number):
    """Runs it in a child that kills itself before so many calls; True if it came to that."""
    if (child := os.fork()) == 0:
        signal.alarm(GIVE_UP_S)
        left = [number]

        def fatal(real):
            def call(*args, **options):
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **options)

            return call

        try:
            run = act()
            for name in CALLS:
                setattr(os, name, fatal(getattr(os, name)))
            run()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status != 0


def states(start, folder, act, look):
    """What is left of a copy after a kill before each call, with duplicates left out, and in the end without a kill."""
    left = []
    for number in range(200):
        root = folder / str(number)
        shutil.copytree(start, root)
        met = killed(lambda root=root: act(root), number)
        if (state := look(root)) not in left[-1:]:
            left.append(state)
        act(root)()
        done = look(root)
        shutil.rmtree(root)
        if not met:
            return left, done
    raise AssertionError("it has no end")


def served(root):
    return str(open_model(root).pick().generation)


def standing(root):
    """What a server that starts now serves, and the decisions' states by version."""
    records = Repository(root).standing("small", [1, 2])
    return served(root), {number: record.state for number, record in records.items()}


@pytest.fixture
def start(tmp_path):
    root = tmp_path / "start"
    write_package(root, users=USERS)
    for step in (1, 2):
        publish(root, step, users=[step])
    open_model(root)
    write_package(root, 2, users=USERS, seed=2)
    return root


def test_killed_rollback_to_an_earlier_version_leaves_either(start, tmp_path):
    def act(root):
        model = open_model(root)
        if model.pick().generation.version == 1:
            return lambda: None
        return lambda: roll_back(model, RollbackTarget(1, 1), "labels were all 0")

    left, done = states(start, tmp_path, act, standing)
    assert left == [("2.0", {}), ("2.0", {1: "available"}), ("1.1", {1: "available", 2: "withdrawn"})]
    assert done == left[-1]


def test_killed_rejection_and_release_leave_either(start, tmp_path):
    rejected = ("1.2", {2: "withdrawn"})
    left, done = states(start, tmp_path, lambda root: lambda: reject_version(Repository(root), "small", 2), standing)
    assert (left, done) == ([("2.0", {}), rejected], rejected)
    reject_version(Repository(start), "small", 2)
    left, done = states(start, tmp_path, lambda root: lambda: release_version(Repository(root), "small", 2), standing)
    assert (left, done) == ([rejected, ("2.0", {2: "available"})], ("2.0", {2: "available"}))


def placed(root):
    repository = Repository(root)
    for number in repository.versions("small"):
        repository.version("small", number).verify()
    for number in repository.candidates("small"):
        repository.candidate("small", number).verify()
    return repository.versions("small"), repository.candidates("small"), served(root)


def test_killed_decision_about_a_candidate_leaves_either(start, tmp_path):
    source = Repository(write_package(tmp_path / "made", 3, users=USERS).parent.parent).version("small")

    def committing(root):
        if 3 in Repository(root).candidates("small"):
            return lambda: None
        return lambda: commit(Repository(root), source, 3)

    def rejecting(root):
        if 3 not in Repository(root).candidates("small"):
            return lambda: None
        return lambda: reject_version(Repository(root), "small", 3)

    before, refused, released = ([1, 2], [], "2.0"), ([1, 2], [3], "2.0"), ([1, 2, 3], [], "3.0")
    assert states(start, tmp_path, committing, placed) == ([before, refused], refused)
    commit(Repository(start), source, 3)
    releasing = partial(release_version, model="small", number=3)
    assert states(start, tmp_path, lambda root: partial(releasing, Repository(root)), placed) == (
        [refused, released], released
    )  # fmt: skip
    assert states(start, tmp_path, rejecting, placed) == ([refused, before], before)


def test_killed_gate_records_a_hold_or_nothing(tmp_path):
    start = tmp_path / "start"
    write_guarded(start)

    def act(root):
        model = asked(open_model(root))
        if not (root / "small" / "2").exists():
            write_bad(root)
        return model.poll

    def held(root):
        return [record.state for record in Repository(root).version_records("small").all()]

    left, done = states(start, tmp_path, act, held)
    assert left == [[], ["held"]]
    assert done == ["held"]
