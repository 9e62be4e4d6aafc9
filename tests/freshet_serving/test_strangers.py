import importlib
import sys

import pytest

from freshet_serving.strangers import FLOORS, taken


@pytest.fixture
def found_first(tmp_path, monkeypatch):
    """A folder whose modules are found before ours."""
    for name in [name for name in sys.modules if name.partition(".")[0] in FLOORS]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    importlib.invalidate_caches()


def test_names_that_lead_to_freshet_are_not_taken(found_first):
    assert taken(*FLOORS) is None


def test_the_first_name_that_a_module_has_is_named_with_its_file(found_first):
    (found_first / "models.py").touch()
    (found_first / "serving").mkdir()
    (found_first / "serving" / "__init__.py").touch()

    assert f"the name is taken by {found_first / 'models.py'}: rename" in taken(*FLOORS)
    assert f"the name is taken by {found_first / 'serving' / '__init__.py'}: rename" in taken("processor", "serving")
    assert taken("processor", "compiler") is None


def test_a_folder_without_an_init_takes_a_name_only_where_nothing_else_has_it(found_first, monkeypatch):
    (found_first / "models").mkdir()
    assert taken("models") is None

    monkeypatch.setattr(sys, "path", [str(found_first)])
    assert f"the name is taken by {found_first / 'models'}: rename" in taken("models")


def test_a_name_that_nothing_has_is_not_taken():
    assert taken("no_such_package_of_ours") is None
