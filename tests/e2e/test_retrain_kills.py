"""kill -9 at each step of `freshet train --new-version`, life after life: on nights that are refused, and on good ones.

The lives are forks of this process, which has imported TensorFlow once and used nothing of it.
"""

import os
import signal
import sys

import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.training.version_review import NOTE_OF_GATE, PASSED, REFUSED
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.serving.commands.cli import main
from tests.e2e.dying import Step, arm
from tests.e2e.test_kills import HANGS_AFTER_S, open_processor
from tests.e2e.test_train_live import write_table

pytestmark = [pytest.mark.kills, pytest.mark.tensorflow, pytest.mark.long]

REVIEW, WRITER = "models.training.version_review", "processor.repository.version_writer"
JUDGING = [
    Step(REVIEW, "VersionReview.__call__", "before"),
    Step(REVIEW, "VersionReview.__call__", "after"),
    *(Step(WRITER, "VersionWriter.commit", moment) for moment in ("before", "2", "3", "4", "after")),
]
REPORTING = [Step("models.training.heartbeat", "Heartbeat.end", "before")]
LEARNING = [Step("models.training.full_versions", "refusal", "before")]
"""The candidate is there, and the checkpoint does not know it yet."""


def retrain(folder, data, step=None):
    """Runs the command on these data to its end; returns its exit status, negative for a signal."""
    if (child := os.fork()) == 0:
        signal.alarm(int(HANGS_AFTER_S))
        code = 1
        try:
            with open(folder / "train.log", "a") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            os.chdir(folder)
            if step is not None:
                arm(step, folder)
            new = ["--new-version", "--from-scratch"] if (folder / "repository").exists() else []
            sys.argv = ["freshet", "train", "--config", "train.toml", "--set", f'data.path="{data}"', *new]
            main()
        except SystemExit as end:
            code = end.code or 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with version 1, the table that it was trained on, and one of a bad night."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path_factory.mktemp("retrain")
    write_table(folder)
    settings = folder / "train.toml"
    settings.write_text(settings.read_text().replace("full_rows = 2000\ndelta_rows = 250", "full_rows = 3000"))
    table = pq.read_table(folder / "clicks.parquet")
    labels = table.schema.get_field_index("clicked")
    bad = table.set_column(labels, "clicked", pa.array([0] * len(table), pa.int8()))
    pq.write_table(bad, folder / "bad.parquet")
    assert retrain(folder, "clicks.parquet") == 0, (folder / "train.log").read_text()
    return folder


def whole(folder):
    """Every version and candidate is sound, and where its verdict says; returns (versions, candidates)."""
    repository = Repository(folder / "repository")
    versions, candidates = repository.versions("shop"), repository.candidates("shop")
    opened = [(PASSED, versions, repository.version), (REFUSED, candidates, repository.candidate)]
    for verdict, numbers, reader in opened:
        for number in numbers:
            version = reader("shop", number)
            version.verify()
            assert version.root_manifest.notes[NOTE_OF_GATE]["verdict"] == verdict
    return versions, candidates


@pytest.mark.parametrize(
    ("data", "steps", "code"),
    [("bad.parquet", [*JUDGING, *LEARNING, *REPORTING], 3), ("clicks.parquet", [*JUDGING, *REPORTING], 0)],
    ids=["bad nights", "good nights"],
)
def test_killed_retrain_leaves_whole_versions_and_goes_on(folder, data, steps, code):
    before = whole(folder)
    for step in steps:
        assert retrain(folder, data, step) == -signal.SIGKILL, (str(step), (folder / "train.log").read_text())
        versions, candidates = whole(folder)
        print(f"{data}: {step}: versions {versions}, candidates {candidates}")
        # What was there is there, and nothing bad is a version.
        assert set(versions) >= set(before[0])
        assert set(candidates) >= set(before[1])
        assert versions == before[0] or not code
        before = versions, candidates
    assert retrain(folder, data) == code, (folder / "train.log").read_text()
    versions, candidates = whole(folder)
    if code:
        assert candidates
    else:
        with open_processor(folder / "repository") as server:
            assert server.predictor.manifest("shop")[1].version == versions[-1] > 1
