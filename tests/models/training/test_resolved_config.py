"""Seeds of the hashes of strings: secret, a table's own, and the run's for good."""

import numpy as np
import pytest
import xxhash

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.train_config import StartOptions
from freshet_serving.models.training import checkpoint, run_start
from freshet_serving.models.training.checkpoint import Checkpoints
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.models.training.resolved_config import hash_seeds_of
from freshet_serving.processor.columns import Strings
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.versions.policy import ModelPolicy, VersionPolicy
from tests.models.training.streams import FEATURES, MixedSource, Notes, make_batch, make_config
from tests.models.training.test_lineage import assert_at_head

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]

ROWS = 584
ANEW, ON = StartOptions(new_version=True, from_scratch=True), StartOptions(new_version=True)
STRING_TABLES = {"city", "tag"}


def begin(repository, start_options=None, rows=ROWS, seed=None, **options):
    made = make_config(repository, seed=seed, **options)
    return TrainingRun(made, MixedSource(rows), reporter=Notes(), start_options=start_options)


def in_manifest(repository, version=1):
    return {t.name: t.hash_seed for t in Repository(repository).version("mixed", version).manifest.tables}


def twin(string, seed=0):
    """Another string of 16 bytes with the xxh3_64 of one of 16 bytes, by who knows the seed: where the first half is
    the hash's own constant, the product of both halves is 0, and the second half is free to make up for it."""
    most = 2**64 - 1
    first, second = (int.from_bytes(string[at : at + 8], "little") for at in (0, 8))
    flips = 0x6782737BEA4239B9 + seed & most, 0xAF56BC3B0996523A - seed & most
    low, high = first ^ flips[0], second ^ flips[1]
    product = low * high
    mixed = int.from_bytes(low.to_bytes(8, "little"), "big") + high + ((product & most) ^ (product >> 64)) & most
    return flips[0].to_bytes(8, "little") + (mixed ^ flips[1]).to_bytes(8, "little")


def test_run_draws_and_keeps_a_seed_for_each_string_table(tmp_path):
    first, other = begin(tmp_path / "a", rows=ROWS - 96), begin(tmp_path / "b")
    first.run()
    seeds = first.state.hash_seeds
    assert seeds.keys() == STRING_TABLES
    drawn = [*seeds.values(), *other.state.hash_seeds.values()]
    assert len(set(drawn)) == 4
    assert all(0 < seed < 2**63 for seed in drawn)
    assert in_manifest(tmp_path / "a") == {"user": 0, "item": 0, **seeds}
    resumed = begin(tmp_path / "a")
    assert (resumed.state.hash_seeds, resumed.trainer.manifest.tables) == (seeds, first.trainer.manifest.tables)
    assert [str(g) for g in resumed.stream()] == ["1.4"]
    assert_at_head(resumed)
    assert (
        begin(tmp_path / "a", ON).state.hash_seeds
        == seeds
        == Checkpoints(tmp_path / "a/.checkpoints/mixed").newest().hash_seeds
    )


def test_forged_hash_collision_has_no_effect_in_a_run(tmp_path):
    victim = b"a seller's name."
    forged = twin(victim)
    assert forged != victim
    assert xxhash.xxh3_64_intdigest(forged) == xxhash.xxh3_64_intdigest(victim)
    both = Strings(np.frombuffer(victim + forged, np.uint8), np.array([0, 16, 32]))
    tables = {t.name: t for t in begin(tmp_path).trainer.manifest.tables}
    for name in STRING_TABLES:
        assert len(set(hash_strings(both, tables[name].hash_seed).tolist())) == 2


def test_hash_seeds_are_derived_from_the_seed_in_the_file(tmp_path):
    found = [hash_seeds_of(make_config(tmp_path, seed=seed), None) for seed in (3, 3, 0, 4)]
    assert found[0] == found[1] == {"city": 5238598266832936762, "tag": 1458109431889395}
    assert len({seed for seeds in found for seed in seeds.values()}) == 6


def test_string_tables_have_one_shared_seed_and_id_tables_none(tmp_path):
    integers = [f for f in FEATURES if f.kind not in ("string", "strings")]
    assert hash_seeds_of(make_config(tmp_path, features=integers, seed=None), None) == {}


def test_run_older_than_seeds_continues_with_seed_0(tmp_path, monkeypatch):
    whole = checkpoint.as_saved

    def as_before(state):
        saved = whole(state)
        assert saved.pop("hash_seeds") == {}
        return saved

    with monkeypatch.context() as patch:
        patch.setattr(run_start, "hash_seeds_of", lambda config, old: {})
        patch.setattr(checkpoint, "as_saved", as_before)
        begin(tmp_path, rows=ROWS - 96).run()
    resumed = begin(tmp_path)
    assert [str(g) for g in resumed.stream()] == ["1.4"]
    assert_at_head(resumed)
    assert set(in_manifest(tmp_path).values()) == {0}
    second = begin(tmp_path, ON)
    assert set(in_manifest(tmp_path, 2).values()) == {0}
    assert_at_head(second)


def test_version_continued_without_checkpoints_keeps_its_seeds(tmp_path):
    first = begin(tmp_path)
    first.full()
    (tmp_path / ".checkpoints").rename(tmp_path.with_name("away"))
    second = begin(tmp_path, ON)
    assert second.state.hash_seeds == {"user": 0, "item": 0, **first.state.hash_seeds}
    assert in_manifest(tmp_path, 2) == in_manifest(tmp_path, 1)
    next(second.stream())
    assert_at_head(second)


def test_versions_with_different_seeds_are_served_together(tmp_path):
    columns = make_batch(200, seed=1).columns
    wanted = {}
    for version, start_options in ((1, None), (2, ANEW)):
        run = begin(tmp_path, start_options)
        run.full()
        wanted[version] = run.trainer.score(columns)
    assert not set(in_manifest(tmp_path).values()) & set(in_manifest(tmp_path, 2).values()) - {0}
    with Processor.initialize(
        ProcessorConfig(str(tmp_path), policies={"mixed": ModelPolicy(VersionPolicy(0), given=frozenset({"versions"}))})
    ) as processor:
        for version, scores in wanted.items():
            found = processor.process(PredictRequest("mixed", columns, version=version)).outputs["score"]
            np.testing.assert_allclose(found[:, 0], scores, atol=1e-6)
