"""What test_kills kills: a trainer that publishes all the time, and a server that takes deltas all the time.

    python -m tests.e2e.killing train REPOSITORY [SEED]
    mpiexec -n N python -m tests.e2e.killing processes REPOSITORY
    python -m tests.e2e.killing serve REPOSITORY SCRATCH SEED

A trainer with a seed meets somebody who rolls its version back now and then.

Each says on stdout what it is about to do and what it has done, one line each and at once, so that a reader of the
lines can pick any moment to kill it: "committing" and "committed" around every rename and link, and for whoever counts
on it "published 1.3", "rolling back 1.2", "serves 1.3".
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

MODEL = "killed"
FULL_ROWS, DELTA_ROWS, BATCH_ROWS, SNAPSHOT_AFTER = 192, 48, 32, 5
HOT_ROWS = 10


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def announced(real):
    def commit(*args):
        say("committing")
        real(*args)
        say("committed")

    return commit


def announce_commits():
    """A line before and after every rename and link of this process."""
    os.replace, os.rename, os.link = announced(os.replace), announced(os.rename), announced(os.link)


def make_run(repository, make_trainer=None):
    """The training run that both the child and its uninterrupted twin make: an endless stream, with tables of which few
    rows are in memory, and ids that wait and leave."""
    from freshet_serving.models.config.feature_sections import FeatureConfig
    from freshet_serving.models.config.model_section import ModelConfig
    from freshet_serving.models.config.publish_section import PublishConfig
    from freshet_serving.models.config.table_sections import TableConfig
    from freshet_serving.models.config.train_config import TrainConfig
    from freshet_serving.models.config.train_section import TrainSettings
    from freshet_serving.models.data.formats import DataConfig
    from freshet_serving.models.data.synthetic import SyntheticSource, default_features
    from freshet_serving.models.training import loop as run

    # A checkpoint after every batch of the first phase: more to be killed in.
    run.CHECKPOINT_SECONDS = 0.0
    features, tables = [], {}
    for name, options in default_features().items():
        table = {} if options["kind"] == "float" else {"table": name, "dim": 4}
        features.append(FeatureConfig(name, **(options | table)))
        if table:
            tables[name] = TableConfig(memory_mb=1, admit_after=1 + len(tables) % 2, evict_after_steps=12)
    config = TrainConfig(
        ModelConfig(MODEL, "deepfm", options={"hidden": (8,)}),
        DataConfig("stream", "csv"),
        features,
        # Runs are compared, so the seeds of strings' hashes are not to be drawn anew.
        TrainSettings(batch_rows=BATCH_ROWS, seed=1),
        PublishConfig(str(repository), FULL_ROWS, DELTA_ROWS, snapshot_after=SNAPSHOT_AFTER),
        tables=tables,
    )
    source = SyntheticSource(users=80, items=60, item_rows=20)
    with few_rows_in_memory():
        return run.TrainingRun(config, source, make_trainer=make_trainer)


@contextmanager
def few_rows_in_memory():
    """Of tables with a budget that are made in the block."""
    from freshet_serving.models.embedding import tiered_rows

    before = tiered_rows.HOT_SHARE, tiered_rows.LEAST_ROWS
    tiered_rows.HOT_SHARE, tiered_rows.LEAST_ROWS = 0.0, HOT_ROWS
    yield
    tiered_rows.HOT_SHARE, tiered_rows.LEAST_ROWS = before


def make_segments_small():
    """Of the logs of this process' tables, so that they are compacted all the time."""
    from freshet_serving.models.embedding import cold_rows
    from freshet_serving.processor.tables import row_log

    row_log.SEGMENT_RECORDS = cold_rows.SEGMENT_RECORDS = 16
    row_log.MOST_RECORDS = 1 << 16


def processes(repository):
    """One of several that train together."""
    from freshet_serving.models.parallel import rank_trainer
    from freshet_serving.models.parallel.mpi_run import take_part

    rank_trainer.TENDED_STEPS = 4
    say("rank", os.environ.get("PMI_RANK", "0"), os.getpid())
    with few_rows_in_memory():
        take_part(lambda make: train(repository, make_trainer=make))


def train(repository, seed=None, make_trainer=None):
    draw = None if seed is None else random.Random(seed)
    run = make_run(repository, make_trainer)

    def before(batch):
        say("learning", batch.start)
        if draw is not None and draw.random() < 0.2:
            roll_back(repository, draw)

    say("published", run.full())
    for generation in run.stream(before=before):
        say("published", generation)


def roll_back(repository, draw):
    """Somebody takes a few of the newest generations back."""
    from freshet_serving.processor.repository.log.change_log import ChangeLog
    from freshet_serving.processor.repository.model_repository import Repository

    change_log = ChangeLog.of(Repository(repository).version(MODEL), whole=True)
    line = change_log.history.line()
    step = line[max(0, len(line) - 1 - draw.randint(1, 4))].step
    say("rolling", "back", f"{change_log.manifest.version}.{step}")
    change_log.rollback(step)


def change(step):
    """What delta number `step` does to table "user" of tests.support.packages -> (ids upserted, ids removed)."""
    draw = random.Random(step)
    ids = draw.sample(range(60), 12)
    return ids[:9], ids[9:]


def contents(steps, users=range(20)):
    """{id: content number} of table "user" after the deltas of these steps."""
    model = dict.fromkeys(users, 0)
    for n in steps:
        upserts, removed = change(n)
        model |= dict.fromkeys(upserts, n)
        for key in removed:
            model.pop(key, None)
    return model


def serve(repository, scratch, seed):
    """Takes deltas, by upload, by finding them dropped in the folder and by finding their records; rolls back now and
    then. Another trainer would publish: here it is the same process, with a ledger of its own."""
    from freshet_serving.processor.engine import Processor, ProcessorConfig
    from freshet_serving.processor.generation import Generation
    from freshet_serving.processor.package.delta import write_delta
    from freshet_serving.processor.repository.log.change_log import ChangeLog
    from freshet_serving.processor.repository.model_repository import Repository
    from tests.support.packages import make_delta

    draw = random.Random(seed)
    store = Repository(repository)
    processor = Processor.initialize(ProcessorConfig(str(repository), sessions=1, undo_depth=2))
    announce_commits()
    while True:
        generation = processor.predictor.manifest("small")[1]
        say("serves", generation)
        change_log = ChangeLog.of(store.version("small"))
        line = [link.step for link in change_log.history.line()]
        if len(line) > 4 and draw.random() < 0.2:
            back = Generation(generation.version, line[-1 - draw.randint(1, 3)])
            say("rolling", "back", back)
            processor.rollback("small", back)
            continue
        step = change_log.history.top + 1
        upserts, removed = change(step)
        path = scratch / "delta.safetensors"
        dense_seed = step if step % 3 == 0 else None
        delta = make_delta(step, upserts, removed, parent=generation.step, dense_seed=dense_seed)
        write_delta(path, delta)
        way = draw.choice(("upload", "drop", "record"))
        if way == "upload":
            processor.apply_delta("small", data=path.read_bytes())
            continue
        if way == "record":
            change_log.publish(delta)
        else:
            target = change_log.folder / "deltas" / f"{step}.safetensors"
            aside = target.with_name(".arriving.tmp")
            shutil.copyfile(path, aside)
            os.replace(aside, target)
        processor.poll()


if __name__ == "__main__":
    if sys.argv[1] in ("train", "processes"):
        announce_commits()
        # What a snapshot is made of is never renamed: its moments are those of the disk.
        os.fsync = announced(os.fsync)
        make_segments_small()
        {"train": train, "processes": processes}[sys.argv[1]](Path(sys.argv[2]), *map(int, sys.argv[3:]))
    else:
        serve(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
