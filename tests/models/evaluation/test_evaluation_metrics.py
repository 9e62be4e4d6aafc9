import json

import numpy as np
import pytest

from freshet_serving.models.evaluation.evaluation_metrics import EvaluationMetrics
from freshet_serving.processor.columns import Strings
from tests.models.evaluation.test_tally import auc_of_pairs, random_rows


def test_each_label_has_its_own_metrics_slices_and_groups():
    labels, scores, users = random_rows(600, keys=20)
    both = np.stack([labels, 1 - labels], 1), np.stack([scores, scores**2], 1)
    columns = {"user": users, "channel": Strings.of(["app", "web"] * 300)}
    evaluation_metrics = EvaluationMetrics(["clicked", "bought"], ["channel"], "user")
    for first in range(0, 600, 64):
        part = slice(first, first + 64)
        cut = {"user": users[part], "channel": Strings.of((["app", "web"] * 300)[part])}
        evaluation_metrics.add(cut, both[0][part], both[1][part])
    lines = list(evaluation_metrics.lines())
    assert json.loads(json.dumps(lines, allow_nan=False)) == lines
    for i, name in enumerate(("clicked", "bought")):
        own = [line for line in lines if line["label"] == name]
        assert [line["what"] for line in own] == ["all"] + ["decile"] * 10 + ["slice"] * 2
        assert own[0]["auc"] == pytest.approx(auc_of_pairs(list(zip(both[0][:, i], both[1][:, i], np.ones(600)))))
        assert (own[0]["group"], own[0]["grouped_of"]) == ("user", 20)
        single = EvaluationMetrics([name], ["channel"], "user")
        single.add(columns, both[0][:, i], both[1][:, i])
        assert [line["auc"] for line in single.lines() if line["what"] != "decile"] == [
            line["auc"] for line in own if line["what"] != "decile"
        ]


def test_metrics_without_rows_or_second_label_are_reported_as_missing():
    empty = EvaluationMetrics(["clicked"], ["channel"])
    (line,) = empty.lines()
    assert (line["what"], line["rows"], line["calibration_error"]) == ("all", 0, None)
    empty.add({"channel": np.array([1])}, np.ones(1, np.float32), np.full(1, np.nan, np.float32))
    assert next(empty.lines())["not_scored"] == 1
    empty.add({"channel": np.array([1])}, np.ones(1, np.float32), np.full(1, 0.5, np.float32))
    whole, *_ = empty.lines()
    assert (whole["auc"], whole["rows"], whole["observed"]) == (None, 1, 1.0)
