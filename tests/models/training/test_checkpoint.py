from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.training.checkpoint import Checkpoints, RunState, changes_of
from freshet_serving.processor.errors import Corrupt
from tests.models.training.streams import PARTS, MixedSource, differing, make_batch, make_config, snapshot, untouched
from tests.models.training.trainers import make_trainer

pytestmark = pytest.mark.tensorflow

STATE = RunState(
    "finger", {"price": (0.1, 1 / 3)}, 1, 512, 3, 17, 1_700_000_000.123456, (1_699_999_999.5, 1_700_000_000.25), 96
)


@pytest.fixture
def trainer(tmp_path):
    return make_trainer(make_config(tmp_path, optimizer="adam"))


other = trainer
"""Another one of the same configuration."""


def learn(trainer, *numbers, rows=32, users=60):
    for number in numbers:
        trainer.learn(make_batch(rows, seed=number, users=users))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("rows", "said"), [(None, ""), (41, ""), (40, ": the data have no rows after it, so nothing is trained on")]
)
def test_resumed_run_says_when_the_data_have_no_rows_left(rows, said):
    state = replace(STATE, position=40, version=2, step=3)
    (line,) = state.resumed(rows, 0)
    assert line.startswith(f"resumed at row 40, generation 2.3{said}")
    assert bool(said) == (":" in line)
    assert ":" not in "".join(replace(state, version=0).resumed(rows, 0))


def test_checkpoint_restores_every_bit(trainer, other, tmp_path):
    learn(trainer, 1, 2, 3)
    Checkpoints(tmp_path).save(trainer, STATE)
    restored = Checkpoints(tmp_path).restore(other)
    assert differing(snapshot(other), snapshot(trainer)) == []
    assert restored.state == STATE
    assert restored.changes is None
    learn(trainer, 4, 5)
    learn(other, 4, 5)
    assert differing(snapshot(other), snapshot(trainer)) == []


def test_increments_restore_every_bit_including_removals(trainer, other, tmp_path):
    checkpoints = Checkpoints(tmp_path)
    learn(trainer, 1, 2)
    checkpoints.save(trainer, STATE)
    returned = {}
    for n in range(3, 9):
        learn(trainer, n, users=20 * n)
        if n % 2:
            trainer.tables["item"].remove(untouched(trainer.tables["item"], trainer.steps - 1))
        trainer.tables["user"].remove(make_batch(4, seed=n).columns["user"])
        returned = changes_of(trainer)
        checkpoints.save(trainer, replace(STATE, step=n))
        restored = Checkpoints(tmp_path).restore(other)
        assert differing(snapshot(other), snapshot(trainer)) == []
        assert restored.state.step == n
    assert len(returned["user"].removed)
    for name, changes in restored.changes.items():
        for part in PARTS:
            assert getattr(changes, part).tobytes() == getattr(returned[name], part).tobytes()


def test_checkpointed_changes_no_longer_count_as_changed(trainer, tmp_path):
    checkpoints = Checkpoints(tmp_path)
    learn(trainer, 1)
    assert len(changes_of(trainer)["user"].keys)
    checkpoints.save(trainer, STATE)
    assert not len(changes_of(trainer)["user"].keys)


def test_increment_size_depends_only_on_what_changed(trainer, tmp_path):
    checkpoints = Checkpoints(tmp_path)
    trainer.tables["user"].insert(np.arange(20_000))
    learn(trainer, 1)
    checkpoints.save(trainer, STATE)
    learn(trainer, 2)
    checkpoints.save(trainer, STATE)
    full, increment = sorted(tmp_path.iterdir())
    assert increment.stat().st_size < full.stat().st_size / 10


def test_compaction_starts_when_increments_outweigh_the_full_checkpoint(trainer, other, tmp_path):
    checkpoints, kinds = Checkpoints(tmp_path), []
    learn(trainer, 1)
    checkpoints.save(trainer, STATE)
    for n in range(2, 12):
        learn(trainer, n)
        checkpoints.save(trainer, replace(STATE, step=n))
        sizes = [path.stat().st_size for path in sorted(tmp_path.iterdir())]
        checkpoints.compact(trainer, replace(STATE, step=n))
        kinds.append([name.split(".")[1] for name in names(tmp_path)])
        assert (kinds[-1] == ["full"]) == (sum(sizes[1:]) > sizes[0])
        restored = Checkpoints(tmp_path).restore(other)
        assert restored.state.step == n
        assert differing(snapshot(other), snapshot(trainer)) == []
    assert ["full"] in kinds
    assert ["full", "inc"] in kinds


def test_compaction_counts_increments_of_earlier_processes_too(trainer, tmp_path):
    learn(trainer, 1)
    Checkpoints(tmp_path).save(trainer, STATE)
    for n in range(2, 40):
        learn(trainer, n)
        checkpoints = Checkpoints(tmp_path)
        checkpoints.save(trainer, STATE)
        checkpoints.compact(trainer, STATE)
        if len(names(tmp_path)) == 1:
            return
    pytest.fail("forty increments were never compacted")


def test_kill_before_removing_old_checkpoints_is_harmless(trainer, other, tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for n in range(3):
        learn(trainer, n)
        checkpoints.save(trainer, replace(STATE, step=n))
    old = {path: path.read_bytes() for path in tmp_path.iterdir()}
    learn(trainer, 9)
    checkpoints.save_full(trainer, replace(STATE, step=9))
    for path, data in old.items():
        path.write_bytes(data)
    again = Checkpoints(tmp_path)
    assert again.restore(other).state.step == 9
    assert differing(snapshot(other), snapshot(trainer)) == []
    again.save_full(other, STATE)
    assert names(tmp_path) == ["00000005.full.safetensors", "borders"]


def test_requested_checkpoints_stay_restorable_and_others_are_removed(trainer, other, tmp_path):
    checkpoints, held = Checkpoints(tmp_path), {}
    for n in range(1, 10):
        learn(trainer, n)
        state = replace(STATE, step=n)
        checkpoints.save_full(trainer, state, wanted=[5]) if n in (4, 7, 9) else checkpoints.save(trainer, state)
        held[n] = snapshot(trainer)
    assert [(number, state.step) for number, state in checkpoints.states()] == [(n, n) for n in range(4, 10)]
    for folder in (checkpoints, Checkpoints(tmp_path)):
        for number in (5, 9, 4, 8):
            restored = folder.restore(other, number)
            assert restored.state.step == number
            assert differing(snapshot(other), held[number]) == []
    assert Checkpoints(tmp_path).restore(other).state.step == 9
    checkpoints.save_full(other, STATE)
    assert names(tmp_path) == ["00000010.full.safetensors"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A full checkpoint and an increment of a small model, as bytes by name."""
    folder = tmp_path_factory.mktemp("sound")
    trainer = make_trainer(make_config(folder, optimizer="adam"))
    checkpoints = Checkpoints(folder)
    for n in range(2):
        learn(trainer, n, rows=3)
        checkpoints.save(trainer, STATE)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_truncated_or_bit_flipped_file_is_refused_in_one_line(sound, other, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("broken")
    chosen = data.draw(st.sampled_from(sorted(sound)))
    raw = bytearray(sound[chosen])
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    else:
        # Half of the flips in the header, which is a small part of the file.
        (length,) = np.frombuffer(raw[:8], np.int64)
        bit = data.draw(st.one_of(st.integers(0, (8 + int(length)) * 8 - 1), st.integers(0, len(raw) * 8 - 1)))
        raw[bit // 8] ^= 1 << bit % 8
    for name, whole in sound.items():
        (folder / name).write_bytes(raw if name == chosen else whole)
    with pytest.raises(Corrupt) as refused:
        Checkpoints(folder).restore(other)
    assert "\n" not in str(refused.value)
    assert str(folder) not in str(refused.value)


def test_missing_increment_is_refused(trainer, other, tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for n in range(4):
        learn(trainer, n)
        checkpoints.save(trainer, STATE)
    (tmp_path / "00000003.inc.safetensors").unlink()
    with pytest.raises(Corrupt, match="number 3 is missing"):
        Checkpoints(tmp_path).restore(other)


def test_temporary_and_foreign_files_are_ignored(trainer, other, tmp_path):
    learn(trainer, 1)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(trainer, STATE)
    for name in (".00000002.inc.safetensors.ab12cd34.tmp", "notes.txt", "00000009.inc.safetensors.bak"):
        (tmp_path / name).write_bytes(b"half a file")
    assert Checkpoints(tmp_path).restore(other).state == STATE
    learn(trainer, 2)
    checkpoints.save(trainer, STATE)
    assert Checkpoints(tmp_path).newest().scaling == STATE.scaling


def test_failed_write_keeps_the_previous_checkpoint_and_is_repeatable(trainer, other, tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    learn(trainer, 1)
    checkpoints.save(trainer, STATE)

    def full_disk(path):
        raise OSError(28, "No space left on device")

    learn(trainer, 2)
    with monkeypatch.context() as patch:
        patch.setattr("freshet_serving.models.training.checkpoint.atomic_file", full_disk)
        with pytest.raises(OSError, match="No space"):
            checkpoints.save(trainer, STATE)
    checkpoints.save(trainer, STATE)
    Checkpoints(tmp_path).restore(other)
    assert differing(snapshot(other), snapshot(trainer)) == []


def test_empty_folder_has_nothing_to_restore(trainer, tmp_path):
    checkpoints = Checkpoints(tmp_path / "new")
    assert checkpoints.restore(trainer) is None
    assert checkpoints.newest() is None


@pytest.mark.parametrize("cut", [64, 192, 256])
def test_trainer_restored_mid_stream_ends_bitwise_equal(trainer, other, tmp_path, cut):
    source, checkpoints = MixedSource(320), Checkpoints(tmp_path)
    for batch in source.batches(64):
        if batch.start == cut:
            Checkpoints(tmp_path).restore(other)
            for later in source.batches(64, cut):
                other.learn(later)
        trainer.learn(batch)
        checkpoints.save(trainer, replace(STATE, position=batch.end))
    assert differing(snapshot(other), snapshot(trainer)) == []


def test_leftovers_of_an_interrupted_write_are_removed(tmp_path):
    for name in (".00000002.inc.safetensors.ab12cd34.tmp", "notes.txt", "00000009.inc.safetensors.bak"):
        (tmp_path / name).write_bytes(b"half a file")
    Checkpoints(tmp_path)
    assert names(tmp_path) == ["00000009.inc.safetensors.bak", "notes.txt"]
