"""A module's tests are found by its name: those of floor/room/name.py lie in tests/floor/room/test_name.py.

Where they are many they are divided by subject, test_name_subject.py beside it. A module that is seen only through
another one (a kernel through its table, a printer through its report) has no such file: then a test of its room, or one
of a module that imports it, reaches it.
"""

from functools import cache
from pathlib import Path

from tests.affected.changes import here
from tests.affected.closure import is_test

ROOT = Path(__file__).parents[1]
FLOORS = ("freshet_serving", "processor", "compiler", "models", "serving", "loadtest", "generators")
PRODUCT = ("freshet_serving/", "processor/", "compiler/", "models/", "serving/")
MAX_LINES = 600


def modules():
    """Every module that tests can be about, as a path; without entry points and the servers of peers' own venvs."""
    for path in here().paths:
        name = path.rpartition("/")[2].removesuffix(".py")
        peer = path.startswith("loadtest/peers/") and name == "server"
        if path.partition("/")[0] in FLOORS and not name.startswith("__") and not peer:
            yield path


def files_of_tests():
    """Every test file under a floor, as a path."""
    return [path for path in here().paths if is_test(path) and path.split("/")[1] in FLOORS]


def about(test):
    """Modules that a test file may be about by its name: floor/room/a_b.py and floor/room/a.py of test_a_b.py."""
    folder, _, name = test.removeprefix("tests/").rpartition("/")
    words = name.removeprefix("test_").removesuffix(".py").split("_")
    return [f"{folder}/{'_'.join(words[:n])}.py" for n in range(len(words), 0, -1)]


@cache
def named():
    """Module -> the test files of its name."""
    tests = {module: [] for module in modules()}
    for test in files_of_tests():
        module = next((module for module in about(test) if module in tests), None)
        if module is not None:
            tests[module].append(test)
    return tests


@cache
def importers():
    """Module -> the modules that import it, or take a name of it from where it is passed on."""
    back = {}
    for module in modules():
        for part in here().facts(module).parts:
            for needed in here().needs(f"{module}::{part}"):
                other = needed.partition("::")[0]
                if other != module and not needed.endswith("::"):
                    back.setdefault(other, set()).add(module)
    return back


@cache
def reached(test):
    """The files of which a test reaches a definition."""
    return {node.partition("::")[0] for node in here().closure([test]) if not node.endswith("::")}


def beside(module):
    """Yield the test files of a module's room that reach it."""
    folder = f"tests/{module.rpartition('/')[0]}"
    return (test for test in files_of_tests() if test.rpartition("/")[0] == folder and module in reached(test))


def about_module(module):
    """The test files that are about a module: of its name; else those of its room that reach it; else those of modules
    that import it."""
    if named()[module]:
        return named()[module]
    return list(beside(module)) or sorted({test for other in importers().get(module, ()) for test in named()[other]})


def test_every_product_module_is_reached_by_a_test_that_is_found():
    unnamed = (module for module in modules() if module.startswith(PRODUCT) and not named()[module])
    # The first test of its room that reaches a module is enough: what each of them reaches takes a while to follow.
    assert [module for module in unnamed if not any(beside(module)) and not about_module(module)] == []


def test_test_files_without_a_module_of_their_name_reach_their_room():
    """Those are about several modules at once; one that reaches none of the folder that it mirrors has been left."""
    matched = {test for tests in named().values() for test in tests}
    left = []
    for test in files_of_tests():
        folder = test.removeprefix("tests/").rpartition("/")[0]
        if test not in matched and not any(path.startswith(f"{folder}/") for path in reached(test)):
            left.append(test)
    assert left == []


def test_tests_folder_has_no_shared_modules_at_its_top():
    flat = {path.stem for path in (ROOT / "tests").glob("*.py")}
    assert {name for name in flat if not name.startswith("test_")} == {"__init__", "conftest"}


def test_modules_stay_within_their_line_limit():
    lines = {path: len((ROOT / path).read_text().splitlines()) for path in here().paths}
    assert {path: count for path, count in lines.items() if count > MAX_LINES} == {}
