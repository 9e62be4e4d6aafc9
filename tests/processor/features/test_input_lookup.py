"""What opens stores and looks inputs up is offered by an extension; without one nothing is looked up."""

from types import SimpleNamespace

import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.input_lookup import NO_LOOKUPS, open_lookups, parse_stores
from freshet_serving.processor.ports import ENGINE, Extension, InputStores


@pytest.fixture
def sand(monkeypatch):
    """Offers stores whose settings are pairs, and which keep what they were opened with."""
    stores = InputStores(
        parse=lambda name, section: (name, section),
        open=lambda *opened: SimpleNamespace(by=opened),
        list_writer=lambda *made: SimpleNamespace(by=made),
    )
    monkeypatch.setattr(ENGINE, "_known", {"sand": Extension(input_stores={"online_stores": lambda: stores})})


def test_settings_are_what_the_extension_makes_of_them(sand):
    clock = FakeClock()
    settings = parse_stores({"main": "redis://a", "other": {"url": "redis://b"}})
    assert settings == [("main", "redis://a"), ("other", {"url": "redis://b"})]
    assert open_lookups(settings, clock).by == (settings, clock)


def test_without_the_extension_stores_are_refused_by_name(monkeypatch):
    monkeypatch.setattr(ENGINE, "_known", {})
    with pytest.raises(BadInput, match=r"online_stores\.main needs the extension 'online_features'"):
        parse_stores({"main": "redis://a"})
    with pytest.raises(BadInput, match="online_stores needs the extension 'online_features'"):
        open_lookups([{"name": "main"}], FakeClock())
    assert parse_stores({}) == []
    assert open_lookups([], FakeClock()) is NO_LOOKUPS
