"""`freshet evaluate` ranks what came next among all items: by time, and by each user's last event."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.evaluation.generation_scorer import GenerationScorer
from freshet_serving.models.evaluation.next_item_baselines import NextItemBaselines
from freshet_serving.models.evaluation.next_item_evaluation import rank_next_items
from freshet_serving.models.training.next_item_run import NextItemRun
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.errors import BadInput
from tests.models.training.next_item_logs import ITEMS, next_config, raw_config, write_log
from tests.models.training.streams import Notes
from tests.serving.commands.running import run as run_command

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("next")
    write_log(folder / "log.csv")
    run = NextItemRun(next_config(folder, train={"epochs": 2}, publish={"delta_rows": 0}))
    run.run()
    return run.config


@pytest.fixture(scope="module")
def surprised(trained, tmp_path_factory):
    """The trained file with a log whose last events are at random, so that not every rank is 1."""
    path, random = tmp_path_factory.mktemp("other") / "log.csv", np.random.default_rng(5)
    lines = [line.split(",") for line in Path(trained.data.path).read_text().split()]
    for line in lines[601:]:
        line[1] = str(100 + random.integers(ITEMS))
    path.write_text("\n".join(map(",".join, lines)) + "\n")
    return replace(trained, data=replace(trained.data, path=str(path)))


def ranked(config, **given):
    with GenerationScorer(config.publish.repository, "next") as scorer:
        return rank_next_items(scorer, config.data, config, 3, Notes(), **given)[0]


def plain_ranks(config, rows):
    """The rank of each row's item, row by row, from a server's scores of all items."""
    lines = [line.split(",") for line in Path(config.data.path).read_text().split()[1:]]
    events, ranks = [(int(user), int(item)) for user, item, *_ in lines], []
    with GenerationScorer(config.publish.repository, "next") as scorer:
        items = scorer.rows("item_id")[0]
        for row in rows:
            user, item = events[row]
            before = [i for u, i in events[:row] if u == user][-8:]
            given = {"item_id": items, "history.item": Ragged.of([before])}
            scores = scorer.score(given, len(items), ["score"])
            own = scores[items == item]
            ranks.append(sum(scores[~np.isin(items, before) | (items == item)] >= own))
    return np.array(ranks)


def test_ranks_are_those_of_a_servers_scores(surprised):
    rows = range(780, 800)
    found, ranks = ranked(surprised, skip=780, rows=20).result(), plain_ranks(surprised, rows)
    assert found.groups == 20
    assert len(set(ranks)) > 3
    assert found.hit_rate == pytest.approx(np.mean(ranks <= 3))
    assert found.ndcg == pytest.approx(np.where(ranks <= 3, 1 / np.log2(ranks + 1), 0).mean(), abs=1e-6)


def test_leave_one_out_ranks_each_users_last_event(surprised):
    last_round = ranked(surprised, skip=780)
    left_out = ranked(surprised, leave_one_out=True)
    assert (left_out.targets, left_out.items) == (60, ITEMS)
    assert left_out.result() == last_round.result()
    assert 0.1 < left_out.result().hit_rate < 0.9


def test_rows_beyond_the_log_are_refused(trained):
    with pytest.raises(BadInput, match="expected an event of a history after row 900, got 840 rows"):
        ranked(trained, skip=900)


def test_command_asks_for_the_training_file(trained):
    given = ("--repository", trained.publish.repository, "--data", trained.data.path, "--label", "label")
    with pytest.raises(BadInput, match="evaluate: expected --config, as 'next' ranks what came next"):
        run_command("evaluate", "next", *given)


def test_command_prints_hit_rate_and_ndcg(trained, tmp_path, monkeypatch):
    raw = raw_config(tmp_path)
    lines = []
    for name, section in (
        ("model", raw["model"]),
        ("data", {**raw["data"], "path": trained.data.path}),
        *((f"features.{name}", feature) for name, feature in raw["features"].items()),
        ("sequences.history", raw["sequences"]["history"]),
        ("publish", {"repository": trained.publish.repository}),
    ):
        lines.append(f"[{name}]")
        for key, value in section.items():
            table = isinstance(value, dict)
            inner = "{ " + ", ".join(f"{k} = {json.dumps(v)}" for k, v in value.items()) + " }" if table else ""
            lines.append(f"{key} = {inner or json.dumps(value)}")
    path = tmp_path / "next.toml"
    path.write_text("\n".join(lines))
    told = run_command("evaluate", "--config", str(path), "--leave-one-out", "--top", "3")
    assert "the first 3 of 12 items: hit rate " in told
    assert "over 60 events" in told
    first, *baselines = run_command("evaluate", "--config", str(path), "--skip", "780", "--json").splitlines()
    found = json.loads(first)
    assert (found["what"], found["top"], found["events"], found["items"]) == ("next_item", 10, 60, 12)
    assert [json.loads(line)["name"] for line in baselines] == ["popularity", "last item", "last two"]
    monkeypatch.setattr(NextItemBaselines, "advice", lambda counts, ndcg: "the network does not beat counting")
    told = run_command("evaluate", "--config", str(path), "--skip", "780").splitlines()
    assert [line.split(":")[0] for line in told[-2:]] == ["baseline", "the network does not beat counting"]


def test_counts_of_skipped_rows_are_a_baseline(trained):
    with GenerationScorer(trained.publish.repository, "next") as scorer:
        _, counts = rank_next_items(scorer, trained.data, trained, 3, Notes(), skip=780)
        assert counts.results()["last item"].hit_rate == 1, "each item follows another"
        assert rank_next_items(scorer, trained.data, trained, 3, Notes())[1] is None
