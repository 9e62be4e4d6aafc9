"""What a run goes on from, by what is there: nothing, a checkpoint, or a version without one."""

import dataclasses
from types import SimpleNamespace

import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.train_config import StartOptions
from freshet_serving.models.training.run_start import ContinuedStart, FreshStart, ResumedStart, find_start, make_folders
from freshet_serving.models.training.spec import draft
from freshet_serving.processor.errors import BadInput
from tests.models.training.streams import MixedSource, make_config

pytestmark = pytest.mark.tensorflow

ROWS = 584
ON, ANEW = StartOptions(new_version=True), StartOptions(new_version=True, from_scratch=True)


def never():
    raise AssertionError("nobody asks for versions where a checkpoint is there, or none is to be gone on from")


def found(config, beginning=None, saved=None, newest=never, notes=None, barred="", refused=False):
    """find_start() over a checkpoint's state, if there is one."""
    checkpoints = SimpleNamespace(newest=lambda: saved, folder=make_folders(config) / ".checkpoints" / "mixed")
    note = (notes if notes is not None else []).append
    versions = SimpleNamespace(newest=newest, barred=lambda number: barred, was_refused=lambda saved, anew: refused)
    return find_start(config, MixedSource(ROWS), beginning or StartOptions(), checkpoints, versions, ROWS, note)


def version_of(start, number=3):
    """Contents, as far as a start reads them, of a version made of what another start found."""
    manifest = dataclasses.replace(draft(start.config, start.scaling, start.hash_seeds), version=number)
    return SimpleNamespace(base=SimpleNamespace(manifest=manifest))


def test_empty_repository_gives_a_fresh_start_with_logged_defaults(tmp_path):
    config, notes = make_config(tmp_path), []
    start = found(dataclasses.replace(config, train=type(config.train)()), notes=notes)
    assert type(start) is FreshStart
    assert [line.partition(":")[0] for line in notes] == ["defaults"]
    assert start.scaling.keys() == {f.name for f in start.config.features if f.kind == "float"}
    state = start.state()
    assert (state.position, state.version, state.hash_seeds) == (0, 0, start.hash_seeds)


def test_checkpoint_is_resumed_with_its_scaling_and_seeds(tmp_path):
    config, notes = make_config(tmp_path), []
    saved = dataclasses.replace(found(config).state(), position=96, scaling={"price": (1.5, 2.5)})
    start = found(config, saved=saved, notes=notes)
    assert type(start) is ResumedStart
    assert (start.scaling, start.hash_seeds) == (saved.scaling, saved.hash_seeds)
    assert start.state().fingerprint == saved.fingerprint
    assert start.state().position == 0
    assert not notes


def test_checkpoint_of_a_refused_version_is_not_resumed(tmp_path):
    config = make_config(tmp_path)
    saved = dataclasses.replace(found(config).state(), position=96, version=4, refused=True)
    assert type(found(config, saved=saved, refused=True)) is FreshStart
    old = version_of(found(config))
    start = found(config, ON, saved, newest=lambda: old, refused=True)
    assert type(start) is ContinuedStart
    assert start.state().position == 0


def test_checkpoint_is_resumed_even_when_a_new_version_is_requested(tmp_path):
    config = make_config(tmp_path)
    assert type(found(config, ON, found(config).state())) is ResumedStart


def test_incompatible_checkpoint_is_refused_in_one_line(tmp_path):
    saved = found(make_config(tmp_path)).state()
    changed = make_config(tmp_path, delta_rows=100)
    other = dataclasses.replace(changed, train=dataclasses.replace(changed.train, optimizer="ftrl"))
    with pytest.raises(BadInput, match=r"train\.optimizer was .* so the run in \.checkpoints/mixed of the repository"):
        found(other, saved=saved)


def test_version_without_a_checkpoint_is_continued_by_a_new_version(tmp_path):
    config = make_config(tmp_path)
    first = found(config)
    old = version_of(first)
    start = found(config, ON, newest=lambda: old)
    assert type(start) is ContinuedStart
    assert start.old is old
    assert start.scaling == {name: pytest.approx(pair) for name, pair in first.scaling.items()}
    assert first.hash_seeds.items() <= start.hash_seeds.items()


@pytest.mark.parametrize(("beginning", "position"), [(StartOptions(), 96), (ON, 96), (StartOptions(replay=True), 48)])
def test_withdrawn_version_is_left_for_what_is_served(tmp_path, beginning, position):
    config, notes = make_config(tmp_path), []
    first = found(config)
    saved = dataclasses.replace(first.state(), position=96, version=4, version_row=48)
    start = found(config, beginning, saved, lambda: version_of(first), notes, barred="withdrawn by rollback")
    assert type(start) is ContinuedStart
    assert start.old.base.manifest.version == 3
    assert (start.state().position, start.state().version) == (position, 0)
    assert notes[0] == "version 4 is withdrawn by rollback: not continuing from its checkpoint"


def test_new_version_without_an_existing_one_starts_fresh(tmp_path):
    assert type(found(make_config(tmp_path), ON, newest=lambda: None)) is FreshStart


def test_from_scratch_ignores_checkpoint_and_version(tmp_path):
    config = make_config(tmp_path)
    assert type(found(config, ANEW, saved=found(config).state())) is FreshStart


def test_unfinished_version_of_a_killed_run_is_removed(tmp_path):
    config = make_config(tmp_path)
    unfinished = tmp_path / "mixed" / ".1.tmp"
    unfinished.mkdir(parents=True)
    kept = tmp_path / "mixed" / "1"
    kept.mkdir()
    make_folders(config)
    assert (unfinished.exists(), kept.exists()) == (False, True)


def test_files_that_others_are_writing_stay(tmp_path):
    """A run whose heartbeat was killed while it replaced its report could not be started again."""
    config = make_config(tmp_path)
    (tmp_path / "mixed").mkdir()
    report, elsewhere = tmp_path / "mixed" / ".trainer.json.1a2b3c4d.tmp", tmp_path / "elsewhere"
    report.write_bytes(b"{")
    elsewhere.mkdir()
    (tmp_path / "mixed" / ".2.tmp").symlink_to(elsewhere)
    make_folders(config)
    assert report.exists()
    assert elsewhere.exists()
