"""kill -9 at random moments: a trainer in the middle of saving, publishing, folding its chain, or going back.

FRESHET_KILL_ROUNDS kills of each (1 if not set), at moments drawn by FRESHET_KILL_SEED, as in test_kills.
"""

import random

import pytest

from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.contents import VersionContents
from freshet_serving.processor.repository.model_repository import Repository
from tests.e2e import killing
from tests.e2e.test_kills import ROUNDS, SEED, bytes_of, kill_after, open_processor

pytestmark = [pytest.mark.kills, pytest.mark.tensorflow, pytest.mark.long]

pytest.importorskip("tensorflow", reason="training needs the train extra")


def newest(repository):
    """The newest generation of the chain, with all that it is made of sound and in its place."""
    version = Repository(repository).version(killing.MODEL)
    version.verify()
    change_log = ChangeLog.of(version, whole=True)
    for link in change_log.history.line()[1:]:
        change_log.read_delta(link)
    assert change_log.history.target is change_log.history.head
    return Generation(version.manifest.version, change_log.history.head.step)


def contents(repository):
    """What the newest generation holds, as bytes by name, read from its files."""
    version = Repository(repository).version(killing.MODEL)
    change_log = ChangeLog.of(version)
    held = VersionContents(version, change_log, change_log.history.head)
    tables = {t.name: held.table(t.name) for t in version.manifest.tables}
    parts = {f"{name}/{part}": a.tobytes() for name, pair in tables.items() for part, a in zip(("keys", "rows"), pair)}
    return parts | {name: a.tobytes() for name, a in held.dense.items()}


def holds(trainer):
    """The same of a trainer."""
    exports = {name: table.export() for name, table in trainer.tables.items()}
    parts = {f"{name}/{part}": getattr(e, part).tobytes() for name, e in exports.items() for part in ("keys", "rows")}
    return parts | {name: a.tobytes() for name, a in trainer.dense.weights().items()}


def assert_served(repository, generation, follower):
    """A server that starts now, and one that was there all the time, serve what lies on disk."""
    with open_processor(repository) as restarted:
        follower.poll()
        for server in (restarted, follower):
            assert server.predictor.manifest(killing.MODEL)[1] == generation
            assert bytes_of(server, killing.MODEL) == contents(repository)


def test_killed_trainer_leaves_a_valid_log_and_resumes(tmp_path):
    draw = random.Random(f"trainer {SEED}")
    repository = tmp_path / "repository"
    repository.mkdir()
    follower, reached = None, None
    try:
        for life in range(ROUNDS):
            said = kill_after(draw.randint(1, 250), tmp_path / "trainer.log", "train", repository)

            if not Repository(repository).versions(killing.MODEL):
                continue
            generation = newest(repository)
            published = [Generation.parse(line[1]) for line in said if line[0] == "published"]
            assert generation >= max(published, default=generation), (life, said)
            assert generation >= (reached or generation), (life, said)
            reached = generation
            follower = follower or open_processor(repository)
            assert_served(repository, generation, follower)

        run = killing.make_run(repository)
        run.full()
        follower = follower or open_processor(repository)
        stream = run.stream()
        for _ in range(2):
            generation = next(stream)
            follower.poll()
            assert follower.predictor.manifest(killing.MODEL)[1] == generation
        assert generation > (reached or Generation(0, 0))
        twin = killing.make_run(tmp_path / "twin")
        twin.full()
        assert [str(g) for g in twin.stream(stop_row=run.state.position)][-1] == str(generation)
        assert contents(tmp_path / "twin") == bytes_of(follower, killing.MODEL)
    finally:
        if follower is not None:
            follower.close()


def test_killed_and_rolled_back_trainer_resumes_from_the_served_state(tmp_path):
    draw = random.Random(f"undone {SEED}")
    repository = tmp_path / "repository"
    run = killing.make_run(repository)
    run.full()
    with open_processor(repository) as follower:
        for life in range(ROUNDS):
            said = kill_after(draw.randint(1, 400), tmp_path / "trainer.log", "train", repository, draw.getrandbits(32))
            if draw.random() < 0.5:
                killing.roll_back(repository, draw)
            generation = newest(repository)
            assert_served(repository, generation, follower)
            print(f"life {life}: {generation},", sum(line[0] == "rolling" for line in said), "times rolled back")

            resumed = killing.make_run(repository)
            assert holds(resumed.trainer) == contents(repository)
            following = next(resumed.stream())
            assert following.step > generation.step
            assert holds(resumed.trainer) == contents(repository)
            assert_served(repository, following, follower)
