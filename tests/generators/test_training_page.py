import dataclasses
import typing

from freshet_serving.models.config.gate_section import GateConfig
from freshet_serving.models.config.train_config import TrainConfig
from freshet_serving.processor.options import options_of
from generators.training_page import page

MADE = {
    "ModelConfig": {"options"},
    "FeatureConfig": {"name", "column_kind", "sequence", "window"},
    "SequenceConfig": {"name"},
    "EntityConfig": {"name", "fields", "further", "key_field"},
    "UserTableConfig": {"name", "fields", "key_field"},
    "TableConfig": {"train"},
}
"""Fields that no key of the file gives."""


def test_every_field_set_by_a_key_has_a_description():
    hints = typing.get_type_hints(TrainConfig)
    kinds = [typing.get_args(hint)[-1] if typing.get_args(hint) else hint for hint in hints.values()]
    for kind in filter(dataclasses.is_dataclass, [*kinds, GateConfig]):
        told = {field.name for field, _ in options_of(kind)}
        told |= {field.name for field in dataclasses.fields(kind) if "section" in field.metadata}
        assert {field.name for field in dataclasses.fields(kind)} - told == MADE.get(kind.__name__, set())


def test_section_within_a_section_has_its_own_heading():
    assert "## [publish.gate]\n\nWhen a full version is refused" in page()


def test_sections_and_keys_are_described_by_their_fields():
    text = page()
    assert "## [features.COLUMN]\n\nOne section per feature, named after its column." in text
    assert "| `from` | string | the feature's name | the source column" in text
    assert "| `label` | string or list of strings |  | label column, 0 to 1;" in text
    assert "| `path` | string | required | file, folder or glob" in text
    # Those of [train] before those of the optimizers, which have them for tables as well.
    assert text.index("| `seed` |") < text.index("| `l1` |")
