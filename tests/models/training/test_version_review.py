"""A retrain on a bad night becomes a candidate, which nobody serves or continues from, until it is released."""

import dataclasses
import shutil

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.gate_section import GateConfig
from freshet_serving.models.config.train_config import StartOptions
from freshet_serving.models.training import full_versions
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.processor.errors import Refused
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository.model_repository import Repository
from tests.models.training import night_packages
from tests.models.training.streams import MixedSource, Notes, make_config

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]

ROWS, FULL_ROWS = 3200, 3000
ANEW, ON = StartOptions(new_version=True, from_scratch=True), StartOptions(new_version=True)


class NightSource(MixedSource):
    """The mixed stream with something done to each batch: columns and labels in, columns and labels out."""

    def __init__(self, change, rows=ROWS):
        super().__init__(rows)
        self._change = change

    def batches(self, rows, start=0):
        for batch in super().batches(rows, start):
            columns, label = self._change(dict(batch.columns), batch.label)
            yield dataclasses.replace(batch, columns=columns, label=label)


def shuffled(columns, label):
    return columns, np.random.default_rng(len(label)).permutation(label)


def other_users(columns, label):
    return columns | {"user": columns["user"] ^ 0x5DEECE66D}, label


def no_labels(columns, label):
    return columns, 0 * label


def inverted(columns, label):
    return columns, 1 - label


FAULTS = {
    "shuffled": (shuffled, "the labels fit neither version 1"),
    "units": (lambda columns, label: (columns | {"price": 1000 * columns["price"]}, label), "'price' has other units"),
    "other ids": (other_users, "of the ids of 'user' are ids that version 1 knows"),
    "empty column": (lambda columns, label: (columns | {"age": 0 * columns["age"] + 3}, label), "'age' has one value"),
}


def begin(repository, source=None, start_options=None, mode="on", **options):
    heard = Notes()
    config = make_config(repository, full_rows=FULL_ROWS, **options)
    config = dataclasses.replace(
        config,
        publish=dataclasses.replace(config.publish, gate=GateConfig(mode)),
        train=dataclasses.replace(config.train, holdout=0.25),
    )
    return TrainingRun(config, source or MixedSource(ROWS), reporter=heard, start_options=start_options), heard.notes


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    return tmp_path_factory.mktemp("trained") / "repository"


@pytest.fixture
def served(tmp_path, trained_once):
    """A repository with version 1, trained on a good night."""
    if not trained_once.exists():
        begin(trained_once)[0].full()
    shutil.copytree(trained_once, tmp_path, dirs_exist_ok=True)
    return tmp_path


def refused(repository, source, **options):
    with pytest.raises(Refused) as error:
        begin(repository, source, ANEW, **options)[0].full()
    return str(error.value)


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_night_becomes_a_candidate(served, fault):
    change, reason = FAULTS[fault]
    line = refused(served, NightSource(change))
    repository = Repository(served)
    reasons = repository.candidate("mixed", 2).manifest.notes["gate"]["reasons"]
    assert any(reason in each for each in reasons), reasons
    assert line.startswith(f"version 2 of 'mixed' was refused by the gate: {reasons[0]}")
    assert "`freshet version release mixed 2` serves it" in line
    assert (repository.versions("mixed"), repository.candidates("mixed")) == ([1], [2])


def test_second_bad_night_is_not_compared_with_the_withdrawn_first(served):
    # A gate that is off judges nothing.
    begin(served, NightSource(inverted), ANEW, mode="off")[0].full()
    repository = Repository(served)
    assert "gate" not in repository.version("mixed", 2).manifest.notes
    repository.version_records("mixed").add(2, repository.root_of("mixed", 2), "withdraw", "bad night")
    assert "orders the rows against version 1" in refused(served, NightSource(inverted))
    # Once it is released it shows what is usual.
    assert len(repository.candidate("mixed", 3).manifest.notes["gate"]["moves"]["loss"]) == 1


def test_good_night_is_published_with_its_figures(served):
    assert begin(served, start_options=ANEW, seed=8)[0].full() == Generation(2, 0)
    notes = Repository(served).version("mixed", 2).manifest.notes["gate"]
    assert (notes["verdict"], notes["reasons"]) == ("passed", [])
    assert notes["figures"]["trained_rows"] == FULL_ROWS
    assert notes["figures"]["coverage"]["user"] == 1.0
    inputs = Repository(served).version("mixed", 2).manifest.notes["inputs"]
    assert {"user", "price"} <= inputs.keys()
    assert ("edges" in inputs["user"], "edges" in inputs["price"]) == (False, True)
    assert set(notes["moves"]) == {"auc", "loss", "calibration", "held_out"}


@pytest.fixture(scope="module")
def refused_once(tmp_path_factory):
    return tmp_path_factory.mktemp("refused") / "repository"


@pytest.fixture
def candidate(served, refused_once):
    """The same with version 2, which the gate has refused: all labels of its night are 0."""
    if not refused_once.exists():
        assert "all labels of the 3,000 newest rows are 0" in refused(served, NightSource(no_labels))
        shutil.copytree(served, refused_once)
    shutil.copytree(refused_once, served, dirs_exist_ok=True)
    return served


def test_no_run_continues_from_a_refused_version(candidate):
    with pytest.raises(Refused, match="version 2 of 'mixed' was refused"):
        begin(candidate)
    run, notes = begin(candidate, start_options=ON)
    assert notes[0].startswith("no checkpoint: starting with the weights of 1.0")
    assert run.state.version == 3
    assert Repository(candidate).versions("mixed") == [1, 3]


def test_run_after_rejection_starts_anew(candidate):
    Repository(candidate).reject_candidate("mixed", 2)
    run, _ = begin(candidate)
    assert run.state.position == 0
    assert run.full() == Generation(2, 0)


def test_run_after_release_goes_on_from_it(candidate):
    Repository(candidate).release_candidate("mixed", 2)
    run, notes = begin(candidate, NightSource(no_labels))
    assert notes[0].startswith(f"resumed at row {FULL_ROWS}, generation 2.0")
    assert str(next(run.stream())) == "2.1"


def test_table_damaged_in_packing_is_refused(served, monkeypatch):
    packed = full_versions.publish_version

    def zeroed(repository, draft, tables, *args, **options):
        tables = {name: (keys, 0 * rows if name in ("user", "item") else rows) for name, (keys, rows) in tables.items()}
        return packed(repository, draft, tables, *args, **options)

    monkeypatch.setattr(full_versions, "publish_version", zeroed)
    assert "0.0% of the ids of 'user' have a row that is not all 0" in refused(served, MixedSource(ROWS))


def test_package_of_other_scores_than_its_weights_is_reported(served, monkeypatch):
    packed = full_versions.publish_version

    def raised(repository, draft, tables, *args, **options):
        return packed(repository, *night_packages.raised(draft, tables, args[0]), *args[1:], **options)

    monkeypatch.setattr(full_versions, "publish_version", raised)
    _, notes = (made := begin(served, start_options=ANEW, seed=8))
    made[0].full()
    assert any("the weights that it was made of: odds 1.1 times as high over 3,000 rows" in line for line in notes)


def test_run_killed_before_it_learned_of_the_refusal_learns_of_it(served, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(full_versions, "refusal", lambda candidate: KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            begin(served, NightSource(no_labels), ANEW)[0].full()
    with pytest.raises(Refused):
        begin(served, NightSource(no_labels))
    assert Repository(served).candidates("mixed") == [2]


def test_warning_gate_publishes_and_reports(served):
    run, notes = begin(served, NightSource(inverted), ANEW, mode="warn")
    assert run.full() == Generation(2, 0)
    assert any(line.startswith("gate: it orders the rows against version 1") for line in notes)
    assert Repository(served).version("mixed", 2).manifest.notes["gate"]["verdict"] == "warned"
