import pytest

from processor.errors import BadInput
from processor.extras import EXTRA_OF, how_to_install, needed, wanted


@pytest.mark.parametrize("library", sorted(EXTRA_OF))
def test_a_library_that_is_missing_is_named_with_what_brings_it(library):
    line = f"this command needs {library}, which is not installed: pip install 'freshet-serving[{EXTRA_OF[library]}]'"
    assert wanted("this command", ModuleNotFoundError("no", name=f"{library}.part")) == line


def test_a_smaller_extra_is_named_where_there_is_one():
    assert "'freshet-serving[record]'" in wanted("record", ModuleNotFoundError("no", name="pyarrow"), "record")
    assert how_to_install("record") == "pip install 'freshet-serving[record]'"


def test_a_library_that_is_there_and_broken_is_not_to_be_installed_again():
    line = wanted("a client", ImportError("libz.so.1: no version information", name="httpx"))
    assert line == "a client needs httpx, which is installed and cannot be loaded: libz.so.1: no version information"


@pytest.mark.parametrize("name", ["numpy", "models.data", None])
def test_other_failures_pass(name):
    error = ModuleNotFoundError("no", name=name)
    assert wanted("this command", error) is None
    with pytest.raises(ModuleNotFoundError) as raised, needed("this command"):
        raise error
    assert raised.value is error


def test_a_block_that_lacks_its_library_is_bad_input():
    with pytest.raises(BadInput, match="a client needs httpx, which is not installed"), needed("a client"):
        raise ModuleNotFoundError("no", name="httpx")
