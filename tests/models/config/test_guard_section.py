"""[guard] as a file has it."""

import pytest

from freshet_serving.models.config.guard_section import GuardConfig, read_guard
from freshet_serving.processor.errors import BadInput


def test_guard_is_on_without_the_section_and_can_be_disabled():
    assert read_guard({}) == GuardConfig()
    assert GuardConfig().enabled
    assert not read_guard({"enabled": False}).enabled


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"auc_drop": -0.1}, r"guard.auc_drop: expected 0.0 to 100.0, got -0.1"),
        ({"sigmas": 3.0}, r"guard.sigmas: unknown key; .* \(ended: always 6\)"),
        ({"release_windows": -1}, r"guard.release_windows: expected 0 to 10000"),
        ({"enabled": 1}, r"guard.enabled: expected true or false"),
        ({"auc": 1.0}, r"guard.auc: unknown key; expected one of enabled, auc_drop"),
    ],
)
def test_out_of_range_value_gives_a_one_line_error(section, told):
    with pytest.raises(BadInput, match=told):
        read_guard(section)
