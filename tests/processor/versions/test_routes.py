"""Picking a version: the same rules and the same words wherever requests are answered."""

from collections import Counter
from types import SimpleNamespace

import pytest

from freshet_serving.processor.errors import NotFound, NotReady
from freshet_serving.processor.versions.routes import END, LOADING, Routes, VersionStatus, find
from freshet_serving.processor.versions.traffic import EjectedVersion, Traffic, TrafficSplit

ROUTES = Routes("ctr", {3: "three", 7: "seven"}, {"stable": 3, "lost": 5})


def test_newest_version_answers_unless_a_number_or_label_is_given():
    assert ROUTES.pick() == "seven"
    assert ROUTES.pick(3) == "three"
    assert ROUTES.pick(label="stable") == "three"
    assert ROUTES.pick(7, "stable") == "three"


@pytest.mark.parametrize(
    ("routes", "version", "label", "error", "words"),
    [
        (ROUTES, 4, None, NotFound, "version 4 of model 'ctr' is not loaded"),
        (ROUTES, None, "canary", NotFound, "label 'canary' of model 'ctr' is not set"),
        (ROUTES, None, "lost", NotFound, "version 5 of model 'ctr' is not loaded"),
        (Routes("ctr"), None, None, NotReady, "no version of model 'ctr' is loaded"),
    ],
)
def test_error_names_the_version_or_label_that_cannot_answer(routes, version, label, error, words):
    with pytest.raises(error) as caught:
        routes.pick(version, label)
    assert str(caught.value) == words


def test_unknown_model_error_quotes_the_name_and_lists_the_known():
    with pytest.raises(NotFound, match=r"^model 'x{64}' is not in the repository, which holds nothing$"):
        find({}, "x" * 100)
    models = dict.fromkeys([f"m{n:02}" for n in range(13)], 1)
    with pytest.raises(NotFound, match=r", which holds m00, m01, .*, m09, and 3 more$"):
        find(models, "x")


def test_unserved_model_reports_its_refusal_unless_a_version_loads():
    refused = {1: VersionStatus(1, END, "too old"), 2: VersionStatus(2, END, "no manifest")}
    routes = Routes("ctr", states=refused)
    with pytest.raises(NotReady, match=r"^no version of model 'ctr' is loaded: version 2: no manifest$"):
        routes.pick()
    assert Routes("ctr", states={**refused, 3: VersionStatus(3, LOADING)}).refused == ""
    assert Routes("ctr", {1: Version(1)}, states=refused).refused == ""


class Version:
    """A served version: what routes look at. inputs: what its manifest says of them."""

    def __init__(self, version, inputs="user"):
        self.manifest = SimpleNamespace(version=version, inputs=inputs)
        self.version = version


def split_routes(out=(), split=("stable", "canary"), weights=(1, 1), canary=None, labels=None):
    served = {3: Version(3), 4: canary or Version(4), 9: Version(9)}
    parts = TrafficSplit.of(dict(zip(split, weights)), 5)
    labels = {"stable": 3, "canary": 4} if labels is None else labels
    return Routes("ctr", served, labels, traffic=Traffic(parts, out=dict.fromkeys(out, EjectedVersion("why", 0.0))))


def answers(routes, count=100):
    """How many of so many requests each version answers."""
    return Counter(routes.route().version for _ in range(count))


def test_split_answers_only_requests_without_an_explicit_version():
    routes = split_routes()
    assert answers(routes) == {3: pytest.approx(50, abs=2), 4: pytest.approx(50, abs=2)}
    assert {routes.route(key=b"user-1").version for _ in range(50)} == {routes.route(key=b"user-1").version}
    assert (routes.route(9).version, routes.route(label="canary").version) == (9, 4)
    assert (routes.pick().version, routes.shares(), routes.active()) == (
        3,
        {3: 0.5, 4: 0.5},
        {"stable": 3, "canary": 4},
    )


def test_ejected_version_answers_only_explicit_requests():
    routes = split_routes(out=[4])
    assert answers(routes) == {3: 100}
    assert (routes.shares(), routes.active(), routes.trials()) == ({3: 1.0}, {"stable": 3}, [])
    assert (routes.route(4).version, routes.route(label="canary").version) == (4, 4)


def test_missing_label_or_different_inputs_leave_share_to_the_baseline():
    assert answers(split_routes(labels={"stable": 3})) == {3: 100}
    assert answers(split_routes(labels={"stable": 3, "canary": 5})) == {3: 100}
    routes = split_routes(canary=Version(4, "user and item"))
    assert answers(routes) == {3: 100}
    assert routes.active() == {"stable": 3}


def test_newest_version_replaces_a_missing_baseline_without_trials():
    routes = split_routes(labels={"canary": 4}, weights=(3, 1))
    assert answers(routes) == {9: pytest.approx(75, abs=2), 4: pytest.approx(25, abs=2)}
    assert (routes.active(), routes.trials()) == ({}, [])


def test_each_version_except_the_baseline_is_on_trial_once():
    labels = {"stable": 3, "canary": 4, "again": 4, "newest": 9, "same": 3}
    routes = split_routes(split=labels, weights=(1, 1, 1, 1, 1), labels=labels)
    assert [(a.version, b.version) for a, b in routes.trials()] == [(4, 3), (9, 3)]


def test_without_a_split_the_newest_version_not_ejected_answers():
    served = {3: Version(3), 4: Version(4)}
    out = {4: EjectedVersion("why", 0.0)}
    assert Routes("ctr", served, traffic=Traffic(out=out)).route().version == 3
    assert Routes("ctr", {4: served[4]}, traffic=Traffic(out=out)).route().version == 4


def test_shadow_is_a_labelled_version_besides_the_default():
    labels = {"canary": 4}
    served = {3: Version(3), 4: Version(4)}
    traffic = Traffic(TrafficSplit.of({"stable": 1}, 5), shadow="canary", shadow_share=1.0)
    assert Routes("ctr", served, {**labels, "stable": 3}, traffic=traffic).shadow.version == 4
    assert Routes("ctr", {3: served[3]}, {**labels, "stable": 3}, traffic=traffic).shadow is None
