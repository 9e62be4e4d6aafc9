"""What is wrong with one thing is told once and keeps nobody from the rest."""

import pytest

from freshet_serving.processor.errors import BadInput, NotReady
from freshet_serving.processor.extensions.object_stores import store_errors as module
from freshet_serving.processor.extensions.object_stores.store_errors import StoreErrors


def failing(error):
    def act():
        raise error

    return act


def test_repeated_error_is_logged_once_until_it_ends_or_changes(caplog):
    store_errors = StoreErrors(lambda: True)
    for _ in range(3):
        assert store_errors.alone("a", failing(BadInput("no manifest")))
    assert store_errors.alone("a", lambda: None)
    assert store_errors.alone("a", failing(BadInput("no manifest")))
    assert store_errors.alone("a", failing(BadInput("no signature")))
    assert [r.message.rpartition(": ")[2] for r in caplog.records] == ["no manifest", "no manifest", "no signature"]


def test_refused_object_is_incomplete_and_an_outage_is_raised(caplog):
    assert not StoreErrors(lambda: True).alone("a", failing(NotReady("403")))
    assert not StoreErrors(lambda: True).alone("a", lambda: False)
    with pytest.raises(NotReady):
        StoreErrors(lambda: False).alone("a", failing(NotReady("no connection")))
    with pytest.raises(NotReady):
        StoreErrors(lambda: True).alone("a", failing(NotReady("403")), strict=True)


def test_internal_error_is_logged_with_its_traceback(caplog):
    assert StoreErrors(lambda: True).alone("a", failing(ZeroDivisionError()))
    assert "ZeroDivisionError" in caplog.text
    assert "Traceback" in caplog.text


def test_number_of_remembered_names_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MOST", 3)
    store_errors = StoreErrors(lambda: True)
    for n in range(100):
        store_errors.tell(f"n{n}", "wrong")
    assert len(store_errors._wrong) <= 3
