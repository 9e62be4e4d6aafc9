"""[publish.gate] as a file has it, whole or by its mode alone."""

import pytest

from freshet_serving.models.config.gate_section import GateConfig, read_gate
from freshet_serving.models.config.publish_section import read_publish
from freshet_serving.processor.errors import BadInput


def test_gate_is_on_without_the_section_and_its_mode_may_stand_alone():
    assert read_publish({}).gate == GateConfig() == GateConfig("on")
    assert read_publish({"gate": "warn"}).gate == GateConfig("warn")
    assert read_publish({"gate": {"mode": "off", "auc_drop": 0.1}}).gate == GateConfig("off", 0.1)


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("of", r"publish.gate: expected one of on, warn, off, got 'of' .did you mean 'off'"),
        (1, r"publish.gate: expected one of on, warn, off, or a section, got an integer"),
        ({"auc_drop": 1.5}, r"publish.gate.auc_drop: expected 0.0 to 1.0, got 1.5"),
        ({"units": 0.5}, r"publish.gate.units: unknown key; .* \(ended: always 5\)"),
        ({"auc": 1.0}, r"publish.gate.auc: unknown key; expected one of mode, auc_drop"),
    ],
)
def test_invalid_gate_gives_a_one_line_error(section, told):
    with pytest.raises(BadInput, match=told):
        read_gate(section)
