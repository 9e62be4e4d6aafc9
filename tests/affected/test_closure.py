import textwrap

import pytest

from tests.affected.closure import Tree
from tests.affected.facts import facts_of


def made(files, others=(), finds_extensions=True):
    def load(path):
        return facts_of(textwrap.dedent(files[path]), path.rpartition("/")[0].replace("/", "."))

    return Tree(files, load, others, finds_extensions)


PACKAGE = {
    "processor/__init__.py": "",
    "processor/package/__init__.py": """
        from freshet_serving.processor.package.delta import read_delta
        from freshet_serving.processor.package.manifest import Manifest
    """,
    "processor/package/delta.py": "MOST = 3\ndef read_delta(): return MOST\ndef write_delta(): ...\n",
    "processor/package/manifest.py": "class Manifest: ...\n",
}


@pytest.mark.parametrize(
    ("changed", "affected"),
    [
        ("processor/package/delta.py::read_delta", ["tests/test_read.py"]),
        ("processor/package/delta.py::MOST", ["tests/test_read.py"]),
        ("processor/package/delta.py::write_delta", ["tests/test_write.py"]),
        ("processor/package/manifest.py::Manifest", []),
        ("processor/package/__init__.py::", ["tests/test_read.py", "tests/test_write.py"]),
    ],
)
def test_name_that_is_passed_on_leads_to_its_definition(changed, affected):
    files = PACKAGE | {
        "tests/a/test_read.py": "from freshet_serving.processor.package import read_delta\nread_delta()\n",
        "tests/a/test_write.py": "from freshet_serving.processor.package import delta\ndelta.write_delta()\n",
    }
    assert made(files).affected([changed]) == [test.replace("tests/", "tests/a/") for test in affected]


def test_names_that_load_on_first_use_lead_to_their_definitions():
    files = PACKAGE | {
        "freshet_serving/__init__.py": """
            from typing import TYPE_CHECKING
            if TYPE_CHECKING:
                from freshet_serving.processor.package.manifest import Manifest as Manifest
            def __getattr__(name): return import_module("freshet_serving.processor.package.delta")
        """,
        "tests/a/test_facade.py": "import freshet_serving\nfreshet_serving.Manifest\n",
    }
    whole = made(files)
    assert whole.affected(["processor/package/manifest.py::Manifest"]) == ["tests/a/test_facade.py"]
    assert whole.affected(["processor/package/delta.py::read_delta"]) == []


def test_module_that_is_passed_whole_counts_whole():
    files = PACKAGE | {
        "tests/a/test_patch.py": """
            from freshet_serving.processor.package import delta
            def test_limit(monkeypatch): monkeypatch.setattr(delta, "MOST", 1)
        """
    }
    assert made(files).affected(["processor/package/delta.py::write_delta"]) == ["tests/a/test_patch.py"]


def test_unknown_name_leads_to_its_whole_file():
    files = PACKAGE | {"tests/a/test_odd.py": "from freshet_serving.processor.package.delta import odd\nodd()\n"}
    whole = made(files)
    assert whole.affected(["processor/package/delta.py::write_delta"]) == ["tests/a/test_odd.py"]
    assert whole.affected(["processor/package/delta.py::odd"]) == ["tests/a/test_odd.py"]


def test_what_an_import_runs_is_needed_by_all_who_import():
    files = PACKAGE | {
        "processor/noted.py": "from freshet_serving.processor.package.delta import read_delta\nread_delta()\n",
        "processor/user.py": "from freshet_serving.processor import noted\ndef plain(): ...\n",
        "tests/a/test_user.py": "from freshet_serving.processor.user import plain\nplain()\n",
    }
    assert made(files).affected(["processor/package/delta.py::MOST"]) == ["tests/a/test_user.py"]


def test_fixtures_count_for_the_tests_that_name_them():
    files = PACKAGE | {
        "tests/a/conftest.py": """
            import pytest
            from freshet_serving.processor.package import Manifest, read_delta
            @pytest.fixture
            def manifest(): return Manifest()
            @pytest.fixture
            def delta(manifest): return read_delta()
            @pytest.fixture(autouse=True)
            def clean(): ...
        """,
        "tests/a/test_delta.py": "def test_one(delta): ...\n",
        "tests/a/test_manifest.py": "pytestmark = pytest.mark.usefixtures('manifest')\n",
        "tests/b/test_other.py": "def test_one(delta): ...\n",
    }
    whole = made(files)
    assert whole.affected(["processor/package/delta.py::read_delta"]) == ["tests/a/test_delta.py"]
    assert whole.affected(["processor/package/manifest.py::Manifest"]) == [
        "tests/a/test_delta.py",
        "tests/a/test_manifest.py",
    ]
    assert whole.affected(["tests/a/conftest.py::clean"]) == ["tests/a/test_delta.py", "tests/a/test_manifest.py"]


COMMANDS = {
    "freshet_serving/__main__.py": "from freshet_serving.serving.commands.cli import main\nmain()\n",
    "serving/commands/cli.py": """
        from freshet_serving.serving.commands.lines import usage_line
        from freshet_serving.serving.commands.serve_command import serve
        from freshet_serving.serving.commands.train_command import train
        app = Typer()
        app.command()(serve)
        app.command()(train)
        def main():
            usage_line()
            app()
    """,
    "serving/commands/lines.py": "def usage_line(): ...\n",
    "serving/commands/serve_command.py": "def serve(): ...\n",
    "serving/commands/train_command.py": "def train(): ...\n",
    "tests/e2e/test_serve.py": "def test_one(): run(['python', '-m', 'freshet_serving', 'serve'])\n",
    "tests/e2e/test_any.py": "def test_one(*words): run(['python', '-m', 'freshet_serving', *words])\n",
}


@pytest.mark.parametrize(
    ("changed", "affected"),
    [
        ("serve_command.py::serve", ["tests/e2e/test_any.py", "tests/e2e/test_serve.py"]),
        ("train_command.py::train", ["tests/e2e/test_any.py"]),
        ("lines.py::usage_line", ["tests/e2e/test_any.py", "tests/e2e/test_serve.py"]),
    ],
)
def test_child_needs_the_command_that_it_runs(changed, affected):
    assert made(COMMANDS).affected([f"serving/commands/{changed}"]) == affected


EXTENDED = {
    "processor/ports.py": "ENGINE = Extensions('processor.extensions')\n",
    "processor/engine.py": """
        from freshet_serving.processor.ports import ENGINE
        class Processor:
            def __init__(self): self.observers = ENGINE.offers("observers")
        class Reply: ...
    """,
    "processor/section.py": """
        from freshet_serving.processor.ports import ENGINE
        def parse(): return ENGINE.get("sections", "ranks")
    """,
    "processor/extensions/trials/__init__.py": """
        def _shadow():
            from freshet_serving.processor.extensions.trials.shadow import score
            return score
        def _ranks():
            from freshet_serving.processor.extensions.trials.ranks import parse
            return parse
        def _other(): ...
        REQUIRES = ()
        EXTENSION = Extension(observers={"shadow": _shadow}, sections={"ranks": _ranks, "other": _other})
    """,
    "processor/extensions/trials/shadow.py": "def score(): ...\n",
    "processor/extensions/trials/ranks.py": "def parse(): ...\n",
    "tests/a/test_engine.py": "from freshet_serving.processor.engine import Processor\nProcessor()\n",
    "tests/a/test_reply.py": "from freshet_serving.processor.engine import Reply\nReply()\n",
    "tests/a/test_section.py": "from freshet_serving.processor.section import parse\nparse()\n",
}


@pytest.mark.parametrize(
    ("changed", "affected"),
    [
        ("shadow.py::score", ["tests/a/test_engine.py"]),
        ("ranks.py::parse", ["tests/a/test_section.py"]),
        ("__init__.py::_other", []),
        ("__init__.py::EXTENSION", ["tests/a/test_engine.py", "tests/a/test_section.py"]),
    ],
)
def test_who_asks_extensions_needs_what_they_offer(changed, affected):
    assert made(EXTENDED).affected([f"processor/extensions/trials/{changed}"]) == affected


def test_extensions_can_be_left_out():
    assert made(EXTENDED, finds_extensions=False).affected(["processor/extensions/trials/shadow.py::score"]) == []


COMMAND_OF_EXTENSION = COMMANDS | {
    "serving/ports.py": "SERVER = Extensions('serving.extensions')\n",
    "serving/commands/extension_commands.py": """
        from freshet_serving.serving.ports import SERVER
        class Group:
            def __init__(self): self.offered = SERVER.offers("commands")
    """,
    "serving/commands/cli.py": COMMANDS["serving/commands/cli.py"].replace("app()", "Group()")
    + "        from freshet_serving.serving.commands.extension_commands import Group\n",
    "serving/extensions/fleet/__init__.py": """
        def _fleet():
            from freshet_serving.serving.extensions.fleet.fleet_command import fleet
            return fleet
        EXTENSION = ServerExtension(commands={"fleet": _fleet})
    """,
    "serving/extensions/fleet/fleet_command.py": "def fleet(): ...\n",
    "tests/e2e/test_fleet.py": "def test_one(): run(['python', '-m', 'freshet_serving', 'fleet'])\n",
}


def test_child_needs_the_command_of_an_extension_that_it_runs():
    changed = ["serving/extensions/fleet/fleet_command.py::fleet"]
    assert made(COMMAND_OF_EXTENSION).affected(changed) == ["tests/e2e/test_any.py", "tests/e2e/test_fleet.py"]


def test_other_files_count_for_who_names_them():
    files = {
        "tests/test_pages.py": "",
        "tests/a/test_one.py": "PAGE = ROOT / 'docs' / 'reference' / 'options.md'\n",
        "tests/a/test_glob.py": "list(ROOT.glob('examples/*.toml'))\n",
        "tests/a/test_none.py": "x = 1\n",
        "tests/b/test_beside.py": "x = 1\n",
    }
    whole = made(files)
    assert whole.affected(["docs/reference/options.md"]) == ["tests/a/test_one.py", "tests/test_pages.py"]
    assert whole.affected(["examples/movies.toml"]) == ["tests/a/test_glob.py", "tests/test_pages.py"]
    assert whole.affected(["tests/b/cases.json"]) == ["tests/b/test_beside.py", "tests/test_pages.py"]
    assert whole.affected(["pyproject.toml"]) == sorted(path for path in files)


def test_no_change_affects_nothing():
    assert made(EXTENDED | {"tests/test_pages.py": ""}).affected([]) == []
