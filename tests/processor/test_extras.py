import sys
from pathlib import Path

import pytest

from freshet_serving.processor import extras
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extras import EXTRA_OF, how_to_install, install_hint, needed


@pytest.mark.parametrize("library", sorted(EXTRA_OF))
def test_missing_library_error_names_the_extra_that_provides_it(library):
    line = f"this command needs {library}, which is not installed: {how_to_install(EXTRA_OF[library])}"
    assert install_hint("this command", ModuleNotFoundError("no", name=f"{library}.part")) == line


def test_smaller_extra_is_suggested_when_there_is_one():
    assert how_to_install("record") in install_hint("record", ModuleNotFoundError("no", name="pyarrow"), "record")


def test_install_command_fits_a_checkout_or_an_installed_distribution(monkeypatch, tmp_path):
    checkout = Path(extras.__file__).resolve().parents[1]
    monkeypatch.setattr(sys, "prefix", str(checkout / ".venv"))
    assert how_to_install("record") == ".venv/bin/pip install -e '.[record]'"
    monkeypatch.setattr(sys, "prefix", "/usr")
    assert how_to_install("record") == "pip install -e '.[record]'"
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "processor" / "extras.py"))
    assert how_to_install("record") == "pip install 'freshet-serving[record]'"


def test_broken_library_gives_no_install_suggestion():
    line = install_hint("a client", ImportError("libz.so.1: no version information", name="httpx"))
    assert line == "a client needs httpx, which is installed but cannot be loaded: libz.so.1: no version information"


@pytest.mark.parametrize("name", ["numpy", "freshet_serving.models.data", None])
def test_unrelated_import_errors_propagate(name):
    error = ModuleNotFoundError("no", name=name)
    assert install_hint("this command", error) is None
    with pytest.raises(ModuleNotFoundError) as raised, needed("this command"):
        raise error
    assert raised.value is error


def test_missing_library_for_a_block_is_bad_input():
    with pytest.raises(BadInput, match="a client needs httpx, which is not installed"), needed("a client"):
        raise ModuleNotFoundError("no", name="httpx")
