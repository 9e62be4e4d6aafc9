"""Picking a version: the same rules and the same words wherever requests are answered."""

import pytest

from processor.errors import NotFound, NotReady
from processor.routes import END, Routes, VersionStatus, find

ROUTES = Routes("ctr", {3: "three", 7: "seven"}, {"stable": 3, "lost": 5})


def test_the_newest_version_answers_unless_a_number_or_a_label_says_otherwise():
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
def test_what_does_not_answer_is_named(routes, version, label, error, words):
    with pytest.raises(error) as caught:
        routes.pick(version, label)
    assert str(caught.value) == words


def test_versions_stand_newest_first():
    states = {n: VersionStatus(n, END) for n in (2, 9, 4)}
    assert [s.version for s in Routes("ctr", states=states).status()] == [9, 4, 2]


def test_an_unknown_model_is_named_and_cut():
    with pytest.raises(NotFound, match=r"^model 'x{64}' is not in the repository$"):
        find({}, "x" * 100)
