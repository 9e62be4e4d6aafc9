import ast
from collections import Counter
from pathlib import Path

import pytest

from loadtest.bench.foreign_models import catalogue
from loadtest.bench.foreign_models.venvs import PACKAGES

LISTED = catalogue.entries()
ALL = [entry for listed in catalogue.LISTS for entry in catalogue.entries(listed)]
FEWEST, ZOO = 5, 15


def test_list_has_eighty_models_of_every_family():
    families = Counter(entry.family for entry in LISTED)
    assert len({entry.name for entry in LISTED}) == len(LISTED) == 80
    assert families.pop("zoo") == ZOO
    assert len(families) == 11
    assert min(families.values()) >= FEWEST


def test_names_differ_and_aims_are_within_the_lists():
    assert len({entry.name for entry in ALL}) == len(ALL)
    assert all(0 < catalogue.AIMS[listed] <= len(catalogue.entries(listed)) for listed in catalogue.LISTS)


@pytest.mark.parametrize("builder", sorted({entry.builder for entry in ALL}))
def test_every_model_has_a_builder(builder):
    path = Path(catalogue.__file__).parent / "builders" / f"{builder}.py"
    built = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
    assert {entry.name for entry in ALL if entry.builder == builder} <= built


def test_every_environment_is_made():
    assert {entry.environment for entry in LISTED} == {catalogue.OWN, *PACKAGES}
