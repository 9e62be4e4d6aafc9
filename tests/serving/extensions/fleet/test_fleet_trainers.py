"""Trainers as replicas report them: the newest report counts, and strange ones are refused."""

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.extensions.fleet.fleet_command import table
from freshet_serving.serving.extensions.fleet.fleet_comparison import compare, read_report
from freshet_serving.serving.extensions.fleet.fleet_trainers import TrainerStatus, read_trainer, trainer_line
from tests.serving.extensions.fleet.test_fleet_comparison import served

RUNNING = {"state": "running", "age_s": 3.0, "rows_per_s": 1310.4, "problem": ""}
SILENT = {"state": "running", "age_s": 660.0, "rows_per_s": 1310.4, "problem": "trainer silent for 11 min"}


def said(where, trainer):
    return read_report(where, {"ready": True, "models": {"ctr": {"served": {"3": served()}, "trainer": trainer}}})


def test_report_with_the_least_age_counts():
    assert compare([said("a", SILENT), said("b", RUNNING)]).trainers == {"ctr": TrainerStatus(**RUNNING)}


def test_dead_trainer_is_told_and_leaves_the_fleet_healthy():
    report = compare([said("a", SILENT), said("b", SILENT)])
    assert report.healthy
    assert table(report).splitlines()[-1] == "ctr: trainer silent for 11 min"


def test_running_trainer_has_its_rate_and_a_finished_one_has_none():
    assert trainer_line("ctr", TrainerStatus(**RUNNING)) == "ctr: trainer running, 1,310 rows/s"
    assert trainer_line("ctr", TrainerStatus("finished", 9e4, 0.0, "")) == "ctr: trainer finished"


def test_replicas_without_a_trainer_report_none():
    assert compare([said("a", None)]).trainers == {}
    assert read_trainer({"served": {}}) is None


@pytest.mark.parametrize("changes", [{"state": 3}, {"age_s": -1}, {"age_s": float("nan")}, {"rows_per_s": True}])
def test_malformed_trainer_is_refused(changes):
    with pytest.raises(BadInput, match="trainer"):
        read_trainer({"trainer": RUNNING | changes})
    with pytest.raises(BadInput, match="expected an object"):
        read_trainer({"trainer": ["running"]})
