"""Memory budgets: how they are written, and that a version under one serves what it always serves."""

from pathlib import Path

import numpy as np
import pytest

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.repository.version import VersionReader
from freshet_serving.processor.tables.budgets import Budgets
from freshet_serving.processor.versions.overview import model_stats
from freshet_serving.processor.versions.served_version import ServedVersion
from tests.support.packages import connect, make_delta, make_inputs, write_package

USERS = range(50)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("ctr/user=512M", 512 << 20), ("ctr/user=2GB", 2 << 30), ("ctr/user=2048k", 2 << 20), (" ctr/user = 1T", 1 << 40)],
)
def test_size_is_parsed_with_its_unit(text, nbytes, tmp_path):
    assert Budgets.parse([text], tmp_path).of("ctr", "user") == nbytes


def test_table_budget_overrides_the_budget_of_its_model(tmp_path):
    budgets = Budgets.parse(["ctr/*=1M", "ctr/user=2M"], tmp_path)
    assert budgets.of("ctr", "user") == 2 << 20
    assert budgets.of("ctr", "item") == 1 << 20
    assert budgets.of("other", "user") == 0


@pytest.mark.parametrize(
    "text", ["ctr", "ctr/user", "ctr=1M", "ctr/user=", "ctr/user=-1M", "ctr/user=1X", "ctr/../x=1M", "*/a=1M", "a/b=9"]
)
def test_malformed_budget_is_refused(text, tmp_path):
    with pytest.raises(BadInput, match="table_memory"):
        Budgets.parse([text], tmp_path)


def test_scratch_folder_is_required_only_when_used(tmp_path):
    Budgets.parse([], tmp_path / "missing")
    with pytest.raises(BadInput, match="scratch"):
        Budgets.parse(["a/b=1M"], tmp_path / "missing")


def test_version_with_a_budget_equals_one_without(tmp_path):
    package = write_package(tmp_path, users=USERS)
    plain = ServedVersion(VersionReader(package), 2, SystemClock())
    # Less than one row's worth beside the books: every settled row is cold. Smaller than a user may write.
    tight = ServedVersion(VersionReader(package), 2, SystemClock(), budgets=Budgets({"small/*": 1}, tmp_path))
    for version in (plain, tight):
        version.attach_replicas(connect(version))
    assert all(t.tiered for t in tight.tables.values())
    for step in range(1, 12):
        delta = make_delta(step, [step, step + 1, 100 + step], [step + 20], tag=step)
        for version in (plain, tight):
            version.apply(delta)
            while version.maintain():
                pass
        if step % 4 == 0:
            for version in (plain, tight):
                version.rollback(step - 1)
                version.apply(delta)
        for (a_keys, a_rows), (b_keys, b_rows) in zip(plain.export()[0].values(), tight.export()[0].values()):
            np.testing.assert_array_equal(a_keys, b_keys)
            np.testing.assert_array_equal(a_rows, b_rows)
    assert plain.generation == tight.generation
    assert tight.tables["user"]._tier._log._live.any(), "rows that deltas changed have gone to disk"


def test_closed_version_is_not_maintained(tmp_path):
    package = write_package(tmp_path, users=USERS)
    version = ServedVersion(VersionReader(package), 0, SystemClock(), budgets=Budgets({"small/*": 1}, tmp_path))
    version.attach_replicas(connect(version))
    version.apply(make_delta(1, [1]))
    version.close()
    assert not version.maintain()


def test_processor_with_budgets_keeps_scores_during_maintenance(tmp_path):
    folder = write_package(tmp_path, users=USERS)
    for step in range(1, 6):
        write_delta(folder / "deltas" / f"{step}.safetensors", make_delta(step, list(USERS), tag=step))
    request = PredictRequest("small", make_inputs(range(60)))
    plain = ProcessorConfig(repository=str(tmp_path), sessions=1)
    budgets = Budgets({"small/*": 1}, Path(tmp_path))
    tight = ProcessorConfig(repository=str(tmp_path), sessions=1, undo_depth=0, budgets=budgets)
    with Processor.initialize(plain) as processor:
        wanted = processor.process(request).outputs["score"]
    with Processor.initialize(tight) as processor:
        moved = 0
        for _ in range(30):
            moved += processor.host.upkeep.maintain()
            np.testing.assert_array_equal(processor.process(request).outputs["score"], wanted)
        (stats,) = model_stats(processor.host)
        assert set(stats.tiers) == {"user", "tag"}
        assert moved > 3
        assert stats.tiers["user"].log_nbytes > 0
        assert stats.tiers["user"].cold_lookups > 0
