"""[guard] as a file has it."""

import pytest

from freshet_serving.models.config.guard_section import GuardConfig, read_guard
from freshet_serving.processor.errors import BadInput


def test_a_file_without_the_section_is_guarded_and_one_may_turn_it_off():
    assert read_guard({}) == GuardConfig()
    assert GuardConfig().enabled
    assert not read_guard({"enabled": False}).enabled


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"auc_drop": -0.1}, r"guard.auc_drop: 0.0 to 100.0 wanted, got -0.1"),
        ({"sigmas": 0}, r"guard.sigmas: a number above 0 wanted, got 0"),
        ({"first_windows": 1}, r"guard.first_windows: 2 to 10000 wanted, got 1"),
        ({"release_windows": -1}, r"guard.release_windows: 0 to 10000 wanted"),
        ({"enabled": 1}, r"guard.enabled: true or false wanted"),
        ({"auc": 1.0}, r"guard.auc: unknown; one of enabled, auc_drop"),
    ],
)
def test_a_value_out_of_bounds_is_one_line(section, told):
    with pytest.raises(BadInput, match=told):
        read_guard(section)
