"""The newest events of a log are ranked by each version's own files, and a worse version becomes a candidate."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.train_config import StartOptions
from freshet_serving.models.training import full_versions, newest_events
from freshet_serving.models.training.newest_events import NewestEvents, RankedEvents
from freshet_serving.models.training.next_item_run import NextItemRun
from freshet_serving.processor.errors import BadInput, Refused
from freshet_serving.processor.repository.model_repository import Repository
from tests.models.training.conftest import stand_in
from tests.models.training.next_item_logs import next_config, write_log

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]
ANEW = StartOptions(new_version=True, from_scratch=True)


def config_of(folder, **train):
    return next_config(folder, train={"epochs": 8, "holdout": 0.2, **train}, publish={"delta_rows": 0})


@pytest.fixture(scope="module")
def served(tmp_path_factory, _compiled):
    """A repository with version 1, which has learned the log."""
    folder = tmp_path_factory.mktemp("events")
    write_log(folder / "log.csv")
    with pytest.MonkeyPatch.context() as patch:
        stand_in(_compiled, patch)
        run = NextItemRun(config_of(folder))
        run.full()
    return folder, run


def notes_of(version):
    return version.manifest.notes["gate"]


def test_first_version_notes_its_catalogue(served):
    notes = notes_of(Repository(served[0] / "repository").version("next", 1))
    assert (notes["verdict"], notes["unjudged"]) == ("passed", ["no version to compare with"])
    assert notes["figures"]["coverage"] == {"item_id": 1.0}


def test_ranks_are_of_the_newest_events_alone(served, monkeypatch):
    folder, run = served
    monkeypatch.setattr(newest_events, "EVENTS", 40)
    monkeypatch.setattr(newest_events, "READ_ROWS", 400)
    log, read = run.source.events, []
    monkeypatch.setattr(log, "batches", lambda rows, start=0, take=log.batches: read.append(start) or take(rows, start))
    events = NewestEvents(run.config, log, 720)
    assert read == [320]
    ranked = events.ranked(Repository(folder / "repository").version("next", 1), "next")
    assert len(ranked.ranks) == 40
    assert ranked.hits().mean() > 0.9
    assert not ranked.alike
    ndcg = np.where(ranked.ranks <= 10, 1 / np.log2(ranked.ranks + 1), 0)
    assert ranked.gains() == pytest.approx(ndcg)


def test_version_of_other_features_cannot_be_ranked(served):
    folder, run = served
    events = NewestEvents(run.config, run.source.events, 720)
    events._column = "history.other"
    with pytest.raises(BadInput, match=r"reads 'item_id' and 'history\.other'"):
        events.ranked(Repository(folder / "repository").version("next", 1), "next")


def test_worse_version_is_refused_and_an_equal_one_passes(served, monkeypatch):
    folder, _ = served
    NextItemRun(config_of(folder, seed=2), start_options=ANEW).full()
    repository = Repository(folder / "repository")
    notes = notes_of(repository.version("next", 2))
    assert (notes["verdict"], notes["reasons"], notes["unjudged"]) == ("passed", [], [])
    assert {"ndcg", "hit_rate", "held_out"} <= notes["moves"].keys()
    packed = full_versions.publish_version

    def shuffled(repository, draft, tables, *args, **options):
        keys, rows = tables["item_id"]
        tables = {**tables, "item_id": (keys, np.random.default_rng(0).permutation(rows))}
        return packed(repository, draft, tables, *args, **options)

    monkeypatch.setattr(full_versions, "publish_version", shuffled)
    with pytest.raises(Refused, match="NDCG@10"):
        NextItemRun(config_of(folder, seed=3), start_options=ANEW).full()
    assert (repository.versions("next"), repository.candidates("next")) == ([1, 2], [3])


def test_gains_end_at_the_places_that_count():
    ranked = RankedEvents(np.array([1, 3, 4, 1 << 62]), 3, False, {})
    assert ranked.gains().tolist() == [1.0, 0.5, 0.0, 0.0]
    assert ranked.hits().tolist() == [1.0, 1.0, 0.0, 0.0]
