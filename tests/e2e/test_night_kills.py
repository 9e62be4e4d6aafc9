"""kill -9 at each step of a night: a server that judges, switches and goes back. Trainers are test_retrain_kills's.

After each kill a server that was there all the time polls, and another one starts: both serve one whole generation.
"""

import contextlib
import http.client
import os
import shutil
import signal

import numpy as np
import pytest

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.extensions.guard.kept_file import KeptFiles
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.versions.version_rollback import RollbackTarget, roll_back
from tests.e2e.dying import Step
from tests.e2e.servers import ALONE, LiveServer
from tests.processor.extensions.guard.test_version_gate import asked, write_bad
from tests.processor.versions.models import open_model
from tests.processor.versions.test_served_version import scores
from tests.support.guarded import Stream, write_guarded

pytestmark = [pytest.mark.kills, pytest.mark.long]

DIES_WITHIN_S = 60
MODEL, GATE, RECORDS = (
    "processor.versions.model",
    "processor.extensions.guard.version_gate",
    "processor.repository.version_records",
)
DECISIONS, BAKE = "processor.versions.version_decisions", "processor.versions.version_selection"
BAD_NIGHT = [
    Step(MODEL, "ServedModel._rebuild", "before"),
    Step(MODEL, "ServedModel._rebuild", "after"),
    Step(GATE, "VersionGate._scored", "before"),
    Step(GATE, "VersionGate._scored", "after"),
    *(Step(RECORDS, "VersionRecords.add", moment) for moment in ("before", "0", "1", "2", "3", "after")),
]
GOOD_NIGHT = [
    Step(MODEL, "ServedModel._serve", "before"),
    Step(MODEL, "ServedModel._serve", "after"),
    Step(BAKE, "BakeTime.begin", "after"),
]
ROLLBACK = [
    Step(MODEL, "ServedModel.load", "after"),
    Step(MODEL, "ServedModel.rollback", "1"),
    Step(MODEL, "ServedModel.rollback", "after"),
    Step(DECISIONS, "VersionDecisions.release", "1"),
    Step(DECISIONS, "VersionDecisions.release", "after"),
    Step(DECISIONS, "VersionDecisions.withdraw", "1"),
    Step(DECISIONS, "VersionDecisions.withdraw", "after"),
    Step(MODEL, "ServedModel.choose", "before"),
    Step(MODEL, "ServedModel.choose", "after"),
]
COMMITTED = ("VersionDecisions.withdraw after", "ServedModel.choose before", "ServedModel.choose after")


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    """A folder with version 1 and two deltas in `start`, what may come in `good` and `bad`, and kept requests."""
    folder = tmp_path_factory.mktemp("night")
    write_guarded(folder / "start")
    log, stream = ChangeLog.of(Repository(folder / "start").version("small", 1)), Stream()
    for _ in range(2):
        log.publish(stream.good())
    write_bad(folder / "bad")
    write_guarded(folder / "good", 2)
    return folder


def come(folder, night, root):
    """Version 2 of a folder is there, as a trainer commits it."""
    aside = root / "small" / ".arriving"
    shutil.copytree(folder / night / "small" / "2", aside)
    aside.rename(root / "small" / "2")


@pytest.fixture
def begin(night, tmp_path):
    """Starts a server of a copy, with kept requests, which dies of `act`; and another one, in this process."""

    def started(step, act, version_2=""):
        root, scratch, once = tmp_path / "repository", tmp_path / "scratch", tmp_path / "once"
        for old in (root, scratch):
            shutil.rmtree(old, ignore_errors=True)
        once.unlink(missing_ok=True)
        shutil.copytree(night / "start", root)
        if version_2:
            come(night, version_2, root)
        scratch.mkdir()
        follower = asked(open_model(root))
        version = follower.pick()
        KeptFiles(scratch, Repository(root).root, SystemClock()).write(
            "small", version.manifest.inputs, version.replicas.kept(), None
        )
        env = os.environ | {"FRESHET_DIES_AT": str(step), "FRESHET_DIES_ONCE": str(once)}
        log = tmp_path / "serve.log"
        options = (*ALONE, "--scratch", str(scratch))
        with LiveServer(root, *options, log=log, env=env, module="tests.e2e.dying") as server:
            once.touch()
            act(server, root)
            assert server.process.wait(DIES_WITHIN_S) == -signal.SIGKILL, (str(step), log.read_text())
        return root, follower

    return started


def whole(root):
    """Every version and its deltas are sound; returns what is decided about versions."""
    repository = Repository(root)
    for number in repository.versions("small"):
        version = repository.version("small", number)
        version.verify()
        log = ChangeLog.of(version, whole=True)
        for link in log.history.line()[1:]:
            log.read_delta(link)
    assert repository.versions("small") == [1, 2]
    assert ChangeLog.of(repository.version("small", 1)).history.top == 2
    assert not [path for path in (root / "small").iterdir() if path.name.startswith(".arriving")]
    return {number: record.state for number, record in repository.standing("small", [1, 2]).items()}


def served_by_all(root, follower):
    """The generation that the server which was there, and one that starts now, both serve after their polls."""
    follower.poll()
    restarted = open_model(root)
    here, there = follower.pick(), restarted.pick()
    assert (here.generation, here.digest) == (there.generation, there.digest)
    np.testing.assert_array_equal(scores(here, [1, 2, 3])[0], scores(there, [1, 2, 3])[0])
    return str(here.generation)


@pytest.mark.parametrize("step", BAD_NIGHT, ids=str)
def test_bad_night_of_a_killed_server_is_held_by_the_others(night, begin, step):
    root, follower = begin(step, lambda server, root: come(night, "bad", root))
    # The decision stands, or is taken again: by a server that is there, as a start is never held up.
    assert whole(root) in ({}, {2: "held"})
    assert served_by_all(root, follower) == "1.2"
    assert whole(root) == {2: "held"}


@pytest.mark.parametrize("step", GOOD_NIGHT, ids=str)
def test_good_night_of_a_killed_server_is_served(night, begin, step):
    root, follower = begin(step, lambda server, root: come(night, "good", root))
    assert whole(root) == {}
    assert served_by_all(root, follower) == "2.0"


@pytest.mark.parametrize("step", ROLLBACK, ids=str)
def test_killed_rollback_is_done_or_can_be_made_again(begin, step):
    def act(server, root):
        with contextlib.suppress(OSError, http.client.HTTPException):
            server.post_json("/admin/models/small/rollback", {"generation": "1.1"})

    root, follower = begin(step, act, version_2="good")
    decided = whole(root)
    committed = str(step).endswith(COMMITTED)
    assert decided in ([{1: "available", 2: "withdrawn"}] if committed else [{}, {1: "available"}])
    assert served_by_all(root, follower) == ("1.1" if committed else "2.0")
    roll_back(follower, RollbackTarget(1, 1))
    assert served_by_all(root, follower) == "1.1"
    assert whole(root) == {1: "available", 2: "withdrawn"}
