import textwrap

from tests.affected.facts import ALWAYS, AS_MAIN, codes_of, facts_of


def parts(source, package=""):
    return facts_of(textwrap.dedent(source), package).parts


def test_each_definition_has_its_own_uses():
    of = parts("""
        from freshet_serving.processor import engine
        LIMIT = engine.MOST
        class Box:
            def put(self, item):
                return LIMIT
    """)
    assert of["LIMIT"].uses == {"engine.MOST"}
    assert {"LIMIT"} <= of["Box"].uses
    assert of[ALWAYS].bound == {"engine": "freshet_serving.processor.engine"}


def test_local_variables_are_no_uses():
    of = parts("""
        def f(table):
            global shared
            kept, shared = [name for name in rows], 1
            def inner(): return kept, other, name
            from tests.support import packages as kept_too
            kept_too = kept_too.x
            return lambda row: row + table
    """)
    assert of["f"].uses == {"rows", "other", "name", "kept_too.x"}


def test_only_tests_and_fixtures_ask_by_their_parameters():
    of = parts("""
        def test_one(root): pytest.mark.usefixtures("quick")
        @pytest.fixture
        def made(bucket): ...
        def helper(tables): ...
    """)
    assert {name: part.asked for name, part in of.items() if name} == {
        "test_one": {"root", "quick"},
        "made": {"bucket"},
        "helper": set(),
    }


def test_questions_to_extensions_are_found_by_kind_and_name():
    of = parts("""
        def all_of_one(): ENGINE.offers("storages")
        def one(): SERVER.get("regions", "shared_memory")
        def any_kind(kind): ENGINE.offers(kind)
    """)
    assert of["all_of_one"].extended == {("ENGINE", "storages", "")}
    assert of["one"].extended == {("SERVER", "regions", "shared_memory")}
    assert of["any_kind"].extended == {("ENGINE", "*", "")}


def test_imports_inside_functions_belong_to_them():
    of = parts("def f():\n    from tests.support import packages\n    packages.write()")
    assert of["f"].bound == {"packages": "tests.support.packages"}
    assert of[ALWAYS].bound == {}


def test_imports_for_type_checkers_do_not_count():
    facts = facts_of("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tests.support import packages\n")
    assert "packages" not in facts.parts[ALWAYS].bound
    assert facts.typed == {"packages": "tests.support.packages"}


def test_signatures_count_only_where_they_call():
    of = parts("def f(a: Table, b: Option(parse)) -> Reply: ...\nkept: Table = make()")
    assert {"Option", "parse"} <= of["f"].uses
    assert not {"Table", "Reply"} & of["f"].uses
    assert of["kept"].uses == {"make"}


def test_fields_of_classes_count_by_their_types():
    assert parts("class A:\n    table: Table\n")["A"].uses == {"Table"}


def test_statements_run_with_every_import():
    of = parts(
        "TABLE = {}\nTABLE['a'] = one\nfor name in other:\n    add(name)\nif __name__ == '__main__':\n    main()"
    )
    assert {"one", "other", "add", "TABLE"} <= of[ALWAYS].uses
    assert of[AS_MAIN].uses >= {"main"}
    assert "main" not in of[ALWAYS].uses


def test_definitions_that_are_registered_are_always_used():
    of = parts("""
        import functools
        import pytest
        def register(f): ...
        @register
        def noted(): ...
        @functools.cache
        def plain(): ...
        @pytest.fixture(autouse=True)
        def everywhere(): ...
        def pytest_configure(): ...
    """)
    assert of[ALWAYS].uses == {"noted", "everywhere", "pytest_configure"}


def test_children_are_read_from_arguments_and_text():
    of = parts("""
        def run():
            start([sys.executable, "-m", "freshet_serving", "serve", "--sample"])
            start("python -m tests.faults siege")
            start(Path(sys.executable).with_name("freshet"))
    """)
    assert of["run"].started == {("freshet_serving", "serve"), ("tests.faults", "siege"), ("freshet_serving", "")}


def test_sources_of_children_count_as_imports():
    of = parts("""
        CODE = '\\n    from freshet_serving import Client\\n    print(1)'
        ODD = f'{x} from tests.support import a, b'
    """)
    assert of["CODE"].names == {"freshet_serving.Client"}
    assert of["ODD"].names == {"tests.support.a", "tests.support.b"}


def test_dotted_names_count_where_names_are_imported():
    name = "freshet_serving.processor.engine"
    assert parts(f"NAME = '{name}'\nimport_module(NAME)")["NAME"].names == {name}
    assert parts(f"NAME = '{name}'\nsys.modules[NAME]")["NAME"].names == set()


def test_modules_chosen_while_running_are_whole_packages():
    of = parts(
        'def f(n):\n    import_module(f"{__package__}.{n}")\n    import_module(f"tests.toys.{n}")', "tests.affected"
    )
    assert of["f"].whole == {"tests.affected", "tests.toys"}


def test_words_and_places_do_not_change_code():
    before = codes_of('"""A."""\ndef f():\n    """B."""\n    return 1\n__all__ = ["f"]\n')
    assert before == codes_of('"""C."""\nimport os\n\n\n# D\ndef f():\n    return 1\n')
    assert before != codes_of("def f():\n    return 2\n")
