"""Labels of one model: set, moved and removed by a person, and by the other servers of the repository."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.errors import BadInput, Conflict, NotFound, NotReady
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.versions.changes import WarningMessage
from freshet_serving.processor.versions.routed_model import RoutedModel
from tests.processor.engines import damage
from tests.processor.versions.models import USERS, assert_serves, open_model, open_with, publish, refuse_to_write
from tests.support.extensions import needs
from tests.support.packages import write_package


@pytest.fixture
def root(tmp_path):
    write_package(tmp_path, users=USERS)
    return tmp_path


@pytest.fixture
def three(root):
    for number in (2, 3):
        write_package(root, number, users=USERS)
    return root


def test_label_survives_a_restart_and_keeps_its_version_loaded(root):
    model = open_model(root)
    model.set_label("stable", 1)
    write_package(root, 2, users=USERS)
    model.poll()
    for opened in (model, open_model(root)):
        assert sorted(opened.routes.served) == [1, 2]
        assert opened.routes.labels == {"stable": 1}
        assert opened.pick(label="stable").generation == Generation(1, 0)
        assert opened.pick().generation == Generation(2, 0)


def test_label_loads_the_old_version_that_it_names(root):
    write_package(root, 2, users=USERS)
    publish(root, 1, [3], tag=9)
    model = open_model(root)
    model.set_label("previous", 1)
    assert_serves(model, "1.1", {3: 9}, version=1)


def test_labelled_version_cannot_be_unloaded_until_its_label_moves(root):
    model = open_model(root)
    model.set_label("stable", 1)
    model.set_label("canary", 1)
    write_package(root, 2, users=USERS)
    model.poll()
    with pytest.raises(Conflict, match="version 1 is held by label canary, stable; move or remove the label first"):
        model.unload(1)
    model.set_label("stable", 2)
    model.set_label("canary", 2)
    assert model.poll() == ["small version 1 unloaded"]
    assert model.pick(label="canary").generation == Generation(2, 0)


def test_removed_label_unloads_its_version_also_after_a_restart(root):
    model = open_model(root)
    model.set_label("stable", 1)
    model.set_label("current", 1)
    write_package(root, 2, users=USERS)
    model.poll()
    model.remove_label("stable")
    assert model.poll() == [], "another label keeps the version"
    model.remove_label("current")
    with pytest.raises(NotFound, match="label 'current' of model 'small' is not set"):
        model.pick(label="current")
    assert model.poll() == ["small version 1 unloaded"]
    reopened = open_model(root)
    assert (reopened.routes.labels, list(reopened.routes.served)) == ({}, [2])


def test_removing_an_unknown_label_names_the_labels_that_are_set(root):
    model = open_model(root)
    with pytest.raises(NotFound, match=r"^label 'stable' of model 'small' is not set; it has no label$"):
        model.remove_label("stable")
    model.set_label("stable", 1)
    model.set_label("canary", 1)
    with pytest.raises(NotFound, match=r"did you mean 'stable'\?\); it has labels canary, stable$"):
        model.remove_label("stabl")


@needs("trials")
def test_label_that_receives_requests_is_not_removed(three):
    model = open_with(three, split={"stable": 0, "canary": 5, "old": 0}, shadow="next")
    for label in ("stable", "canary", "old", "next"):
        model.set_label(label, 2)
    for label, named in (("stable", "split"), ("canary", "split"), ("next", "shadow")):
        with pytest.raises(Conflict, match=f"'{label}' receives requests by policy.{named}; change the policy first"):
            model.remove_label(label)
    model.remove_label("old")
    model.set_policy({"split": {"stable": 1}, "shadow": ""})
    model.remove_label("canary")
    model.remove_label("next")
    assert model.routes.labels == {"stable": 2}


def test_configured_label_is_not_removed(three):
    model = open_with(three, labels={"stable": 2})
    model.set_label("stable", 1)
    model.set_label("old", 1)
    with pytest.raises(Conflict, match="label 'stable' is set in the server's configuration; remove it there"):
        model.remove_label("stable")
    model.remove_label("old")
    assert model.routes.labels == {"stable": 1}
    assert open_with(three, labels={"stable": 2}).routes.labels == {"stable": 1}


def test_label_that_cannot_be_removed_stays(root, monkeypatch):
    model = open_model(root)
    model.set_label("stable", 1)
    monkeypatch.setattr(model._repository, "keep_labels", refuse_to_write)
    with pytest.raises(NotReady):
        model.remove_label("stable")
    assert model.pick(label="stable").generation == Generation(1, 0)


def test_label_that_cannot_be_set_changes_nothing(root, monkeypatch):
    model = open_model(root)
    for label in ("", "a/b", "..", "a" * 129):
        with pytest.raises(BadInput, match="label: expected a name of letters"):
            model.set_label(label, 1)
    with pytest.raises(NotFound, match="version 7"):
        model.set_label("stable", 7)

    monkeypatch.setattr(model._repository, "keep_labels", refuse_to_write)
    with pytest.raises(NotReady):
        model.set_label("stable", 1)
    assert model.routes.labels == {}
    with pytest.raises(NotFound, match="label 'stable' of model 'small' is not set"):
        model.pick(label="stable")


# Other servers of the repository.


def test_label_moves_and_goes_on_every_server(three):
    one, other = open_model(three), open_model(three)
    one.set_label("stable", 1)
    one.set_label("old", 1)
    assert other.poll() == ["small 1.0 loaded", "small labels: old 1, stable 1"]
    one.set_label("stable", 2)
    one.remove_label("old")
    assert other.poll() == ["small 2.0 loaded", "small labels: stable 2", "small version 1 unloaded"]
    assert other.pick(label="stable").generation == Generation(2, 0)
    with pytest.raises(NotFound, match="label 'old' of model 'small' is not set"):
        other.pick(label="old")
    assert [other.poll(), one.poll()] == [[], ["small version 1 unloaded"]]


def test_change_writes_no_other_label_back(three):
    one, other = open_model(three), open_model(three)
    for label in ("a", "b", "c"):
        one.set_label(label, 2)
    other.poll()
    one.remove_label("a")
    one.set_label("b", 1)
    other.set_label("d", 3)
    other.remove_label("c")
    assert Repository(three).labels("small") == {"b": 1, "d": 3}
    for model in (one, other, open_model(three)):
        model.poll()
        assert model.routes.labels == {"b": 1, "d": 3}


def test_label_keeps_its_version_until_the_new_one_is_loaded(three):
    one, other = open_model(three), open_model(three)
    one.set_label("stable", 1)
    other.poll()
    write_package(three, 4, users=USERS)
    path = three / "small" / "4" / "dense.safetensors"
    whole = path.read_bytes()
    damage(path.parent)
    Repository(three).keep_labels("small", {"stable": 4, "next": 7})
    events = other.poll()
    line = "small labels: next 7 (version 7 is not loaded), stable 1 (version 4 is not loaded)"
    assert [event for event in events if isinstance(event, WarningMessage)] == [line]
    assert other.poll() == []
    assert other.pick(label="stable").generation == Generation(1, 0)
    with pytest.raises(NotFound, match="version 7 of model 'small' is not loaded"):
        other.pick(label="next")
    path.write_bytes(whole)
    other.load(4)
    assert other.pick(label="stable").generation == Generation(4, 0)


def test_version_that_another_server_has_labelled_is_not_judged(three):
    model = open_model(three)
    Repository(three).keep_labels("small", {"next": 4})
    model.poll()
    assert (model.vouched(4), model.vouched(2)) == (True, False)


def test_removed_label_falls_back_to_the_configured_version(three):
    one, other = open_model(three), open_with(three, labels={"stable": 2})
    one.set_label("stable", 1)
    other.poll()
    assert other.routes.labels == {"stable": 1}
    one.remove_label("stable")
    other.poll()
    assert other.routes.labels == {"stable": 2}


@pytest.mark.parametrize("content", ["", "{", '{"stable": "1"}'])
def test_damaged_labels_file_changes_no_label(root, content):
    model = open_model(root)
    model.set_label("stable", 1)
    (root / "small" / "labels.json").write_text(content)
    (root / "small" / "touched").mkdir()
    model.poll()
    assert model.routes.labels == {"stable": 1}
    model.set_label("canary", 1)
    assert Repository(root).labels("small") == {"stable": 1, "canary": 1}


def test_deleted_labels_file_removes_labels_but_a_missing_folder_does_not(root):
    model = open_model(root)
    model.set_label("stable", 1)
    (root / "small").rename(root / "away")
    model.poll()
    assert model.routes.labels == {"stable": 1}
    (root / "away").rename(root / "small")
    (root / "small" / "labels.json").unlink()
    model.poll()
    assert model.routes.labels == {}


@needs("trials")
def test_replaced_labels_keep_those_that_are_needed(three):
    model = open_with(three, labels={"file": 2}, split={"base": 1}, shadow="copy")
    for label in ("base", "copy", "old", "moved"):
        model.set_label(label, 2)
    model.replace_labels({"moved": 3, "new": 3})
    assert model.routes.labels == {"file": 2, "base": 2, "copy": 2, "moved": 3, "new": 3}
    assert Repository(three).labels("small") == {"base": 2, "copy": 2, "moved": 3, "new": 3}


def test_replacing_no_labels_by_none_writes_nothing(root, monkeypatch):
    model = open_model(root)
    monkeypatch.setattr(model._repository, "keep_labels", refuse_to_write)
    model.replace_labels({})


ANY = SimpleNamespace(manifest=SimpleNamespace(inputs=[]))
NO_LABELS = SimpleNamespace(labels=lambda _: {}, traffic=lambda _: {})
NUMBERS = st.integers(1, 3)
STEPS = st.lists(st.dictionaries(st.sampled_from("abc"), NUMBERS) | st.frozensets(NUMBERS), max_size=12)


@given(STEPS)
def test_label_leaves_a_served_version_only_for_a_served_one(steps):
    model = RoutedModel("small", NO_LABELS, SystemClock(), lambda: None, None)
    for step in steps:
        before = model.routes
        if isinstance(step, dict):
            model.adopt_labels(step)
        else:
            served = dict.fromkeys(step, ANY)
            model._publish(lambda _, served=served: {"served": served})
        routes = model.routes
        assert routes.labels.keys() == model.labels.keys()
        for label, number in routes.labels.items():
            target, former = model.labels[label], before.labels.get(label)
            assert number in (target, former)
            assert number == target or (target not in routes.served and number in routes.served)
            assert number == former or number in routes.served or former not in routes.served
