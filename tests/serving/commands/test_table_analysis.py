"""`freshet inspect --tables` on what a real run left: counts, ages and changes are those of its trainer."""

import json
import shutil

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.train_config import StartOptions
from freshet_serving.models.training.checkpoint import map_newest
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.processor.errors import BadInput, NotFound
from freshet_serving.serving.commands import table_analysis
from freshet_serving.serving.commands.inspection import inspect
from freshet_serving.serving.commands.table_analysis import analyse_tables
from tests.models.training.conftest import _compiled, quick
from tests.models.training.streams import MixedSource, make_config, spread
from tests.support.packages import write_package

pytestmark = pytest.mark.tensorflow
__all__ = ["_compiled", "quick"]


class Progress:
    def __init__(self):
        self.total, self.done = 0, 0

    def begin(self, what, total):
        self.total += total

    def advance(self, done):
        self.done += done

    def note(self, text): ...


@pytest.fixture
def trained(tmp_path, quick):
    """(repository, its run, what its tables held at step 0)"""
    training = TrainingRun(make_config(tmp_path), MixedSource(584))
    training.full()
    before = {name: table.export() for name, table in training.trainer.tables.items()}
    for generation in training.stream():
        if generation.step == 2:
            training.trainer.tables["user"].remove(spread(np.arange(0, 30)))
    return tmp_path, training, before


def test_newest_generation_uses_trainer_counts_and_changes_since_step_0(trained):
    repository, training, before = trained
    progress = Progress()
    found = analyse_tables(str(repository), "mixed", "", "", progress)
    assert found.title == "mixed 1.4"
    assert "since 1.0" in found.notes[-1]
    assert progress.done <= progress.total
    for summary, change in zip(found.summaries, found.changes):
        held, old = training.trainer.tables[summary.name].export(), before[summary.name]
        assert summary.rows == len(held.keys)
        assert summary.lookups == held.counts.sum()
        assert summary.steps == training.trainer.steps
        assert summary.slots_nbytes == held.slots.nbytes
        assert summary.memory_nbytes > held.rows.nbytes
        assert change.born == len(set(held.keys.tolist()) - set(old.keys.tolist()))
        assert change.gone == len(set(old.keys.tolist()) - set(held.keys.tolist()))
        rows = dict(zip(old.keys.tolist(), old.rows))
        moved = {k: np.linalg.norm(r - rows[k]) for k, r in zip(held.keys.tolist(), held.rows) if k in rows}
        assert change.moved == sum(distance > 0 for distance in moved.values())
        key, distance, *_ = change.furthest[0]
        assert distance == pytest.approx(max(moved.values()), rel=1e-5) == pytest.approx(moved[key], rel=1e-5)
    assert found.changes[0].gone > 0


def test_any_generation_is_analysed_from_the_repository_alone(trained):
    repository, _, before = trained
    found = analyse_tables(str(repository), "mixed", "1.2", "1.1", Progress())
    assert found.title == "mixed 1.2"
    assert all(s.counted and not s.aged for s in found.summaries)
    shutil.rmtree(repository / ".checkpoints")
    first = analyse_tables(str(repository), "mixed", "1.0", "", Progress())
    assert [s.rows for s in first.summaries] == [len(held.keys) for held in before.values()]
    assert [s.lookups for s in first.summaries] == [held.counts.sum() for held in before.values()]
    assert (first.changes, "first generation" in first.notes[-1]) == ([], True)
    with pytest.raises(NotFound, match=r"generation 1\.9: not a generation of 'mixed'; the newest is 1\.4"):
        analyse_tables(str(repository), "mixed", "1.9", "", Progress())
    with pytest.raises(BadInput, match=r"such as '3\.17', got 'x'"):
        analyse_tables(str(repository), "mixed", "x", "", Progress())


def test_table_with_dense_keys_is_shown_as_read_by_number(tmp_path):
    write_package(tmp_path, users=[2, 0, 1])
    found = analyse_tables(str(tmp_path), "small", "", "", Progress())
    assert {s.name: s.read_by for s in found.summaries} == {"user": "row number", "tag": "hash"}


def test_command_prints_tables_and_writes_a_page(trained, capsys):
    repository, _training, _ = trained
    inspect("mixed", str(repository), tables=True, out=repository / "page.html")
    told = capsys.readouterr().out
    assert "mixed 1.4" in told
    assert "admit_after" in told
    page = (repository / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "<h2>user</h2>" in page
    for arguments, message in (
        ({"model": None, "tables": True}, "--tables: expected the name of a model, got none"),
        ({"model": "mixed", "since": "1.0"}, "require --tables"),
        ({"model": "mixed", "tables": True, "out": repository}, "--out: expected a file, got a folder"),
    ):
        with pytest.raises(BadInput, match=message):
            inspect(repository=str(repository), **arguments)


def test_missing_or_foreign_checkpoint_is_not_used(trained):
    repository, _, _ = trained
    assert map_newest(repository / "nowhere") is None
    folder = repository / ".checkpoints" / "mixed"
    assert table_analysis._checkpoint(repository, "mixed", 2) is None
    (folder / json.dumps("x")).write_text("a file of somebody else's")
    assert map_newest(folder).state.version == 1


def test_string_rows_with_a_different_hash_seed_are_not_compared(tmp_path, quick):
    for start_options in (None, StartOptions(new_version=True, from_scratch=True)):
        config = make_config(tmp_path, delta_rows=0, seed=None)
        TrainingRun(config, MixedSource(256), start_options=start_options).full()
    found = analyse_tables(str(tmp_path), "mixed", "", "", Progress())
    assert "not compared because 1.0 hashes their strings with another seed: city, tag" in found.notes
    assert [change.name for change in found.changes] == ["user", "item"]
