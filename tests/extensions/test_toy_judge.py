"""A judge of its own is a new folder and no other file: installed it holds; removed, what it held is still held."""

import pytest

from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.versions.judges import JudgementCounts
from tests.processor.versions.models import USERS, open_model, publish
from tests.support.extensions import install
from tests.support.packages import make_delta, write_package


@pytest.fixture
def root(tmp_path):
    write_package(tmp_path / "repository", users=USERS)
    return tmp_path / "repository"


@pytest.fixture(params=[(), ("guard",)], ids=["beside the guard", "alone"])
def toy(request, monkeypatch, tmp_path, without_extensions):
    """Installs the toy until the test ends, beside the guard or instead of it."""
    with install(monkeypatch, tmp_path, "toy_judge"):
        if request.param:
            without_extensions(*request.param)
        yield


def test_delta_with_many_rows_is_held_and_released_by_hand(toy, root):
    model = open_model(root)
    publish(root, 1, users=(0, 1))
    assert model.poll() == ["small 1.1 served"]
    publish(root, 2, users=(0, 1, 2, 3))
    (event,) = (str(line) for line in model.poll())
    assert event == "small 1.2 held: 4 rows, limit 3"
    assert (str(model.pick().generation), model.chain(1).state) == ("1.1", "HELD")
    assert dict(model.judgement_counts.held) == {"toy_rows": 1}
    newest = model.timeline(1, 1)["entries"]
    assert [one["kind"] for one in newest] == ["hold"]
    assert str(model.release(1, "it is a launch")) == "1.2"
    verdicts = {e["generation"]: e["here"]["verdict"] for e in model.timeline(1, 9)["entries"] if e.get("here")}
    assert verdicts == {"1.1": "in line", "1.2": "not judged"}


def test_hold_of_the_toy_is_released_once_what_is_newest_has_few_rows(toy, root, monkeypatch):
    model = open_model(root)
    publish(root, 1, users=(0, 1, 2, 3))
    model.poll()
    assert model.chain(1).state == "HELD"
    monkeypatch.setattr("freshet_serving.processor.extensions.toy_judge.few_rows.MOST_ROWS", 9)
    ChangeLog.of(Repository(root).version("small", 1)).publish(make_delta(2, (0,)))
    released = any("the hold is released" in line for line in model.poll())
    # The guard lifts no hold that another has set, unless it has evidence by scores.
    assert released == ("guard" not in model.judges.by_name)
    assert model.judgement_counts.released == released


def test_version_is_held_before_it_takes_over(toy, root):
    model = open_model(root)
    for version in (2, 3):
        write_package(root, version, users=USERS)
        model.poll()
    assert model.pick().manifest.version == 2
    assert "a third version" in model.decisions.held[3]


def test_removed_judge_holds_nothing_new_and_its_holds_stay(monkeypatch, tmp_path, root):
    with install(monkeypatch, tmp_path, "toy_judge"):
        model = open_model(root)
        publish(root, 1, users=(0, 1, 2, 3))
        model.poll()
    monkeypatch.undo()
    model = open_model(root)
    assert "toy_judge" not in model.judges.by_name
    assert (str(model.pick().generation), model.chain(1).state) == ("1.0", "HELD")
    assert str(model.release(1)) == "1.1"
    publish(root, 2, users=(0, 1, 2, 3))
    assert model.poll() == ["small 1.2 served"]
    assert vars(model.judgement_counts) == vars(JudgementCounts())
