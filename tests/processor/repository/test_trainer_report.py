"""Reports of trainers: what is written is read again, and what strangers write is refused or bounded."""

import json
import math
from dataclasses import replace

import pytest

from freshet_serving.processor.errors import Corrupt
from freshet_serving.processor.repository.trainer_report import (
    MAX_TRAINER_NBYTES,
    TEXT_LENGTH,
    TrainerReport,
    TrainerState,
    parse_trainer_report,
    without_values,
)

REPORT = TrainerReport(
    "0badcafe",
    TrainerState.RUNNING,
    7,
    10.0,
    rows=12_000,
    rows_per_s=310.5,
    version=3,
    step=41,
    held_out={"auc": 0.78},
    gate="within its bounds",
)


def document(**changes):
    return json.dumps(json.loads(REPORT.dump()) | changes).encode()


def test_report_is_read_as_it_was_written():
    assert parse_trainer_report(REPORT.dump()) == REPORT


def test_figures_that_are_not_finite_are_left_out():
    assert parse_trainer_report(replace(REPORT, window={"auc": math.nan}).dump()).window == {}


def test_long_texts_are_cut_to_one_printable_line():
    error = parse_trainer_report(replace(REPORT, error="a\nb\x1b" + "x" * 5000).dump()).error
    assert error.startswith("a b\\x1b")
    assert len(error) == TEXT_LENGTH


def test_error_is_reported_without_the_value_that_it_got():
    assert without_values("data.age: expected a number, got 'ann@example.com'") == "data.age: expected a number"


def test_fields_of_a_newer_trainer_are_ignored():
    assert parse_trainer_report(document(temperature=3)) == REPORT


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{" * 5000,
        b"\xff\xfe",
        b" " * (MAX_TRAINER_NBYTES + 1),
        document(format="freshet-trainer/9"),
        document(state="asleep"),
        document(state=["running"]),
        document(rows=-1),
        document(rows="many"),
        document(rows=True),
        document(rows_per_s=math.nan),
        document(rows_per_s=math.inf),
        document(step=10**300),
        document(follow=1),
        document(held_out={"auc": "good"}),
        document(held_out={str(n): 0.0 for n in range(17)}),
        document(held_out=[0.5]),
        document(error=None),
        b'{"format": "freshet-trainer/1", "run": "x"}',
    ],
)
def test_bytes_that_are_no_report_are_refused_in_one_line(data):
    with pytest.raises(Corrupt, match=r"^trainer\.json: [^\n]+$"):
        parse_trainer_report(data)
