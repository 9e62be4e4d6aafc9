import subprocess

import pytest

from tests.structure.same import Table, TableError, compare, main, sources_at

TABLE = """
[modules]
"processor.mirror" = "processor.repository"
"processor.package.place" = "processor.repository.location"
[names]
Said = "Message"
tell = "report"
"processor.sessions:admit" = "check_capacity"
"""


def differs(before, after, table=TABLE, path="processor/a.py", new_path=None):
    return compare({path: before}, {new_path or path: after}, Table.parse(table))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("class Said:\n    def tell(self, tell=1): ...\n", "class Message:\n    def report(self, report=1): ...\n"),
        ("x.tell(tell=Said)", "x.report(report=Message)"),
        ("def f():\n    global Said\n    del Said\n", "def f():\n    global Message\n    del Message\n"),
        ("match x:\n    case Said(tell=1): ...\n", "match x:\n    case Message(report=1): ...\n"),
        ("f'{Said}: Said'", "f'{Message}: Said'"),
        (
            "import processor.mirror.m\nprocessor.mirror.m.f()",
            "import processor.repository.m\nprocessor.repository.m.f()",
        ),
        ("from processor.mirror.m import Said as S", "from processor.repository.m import Message as S"),
        ("from processor.package import place\nplace.f()", "from processor.repository import location\nlocation.f()"),
        ("from a import b, Said\nimport c, d\n", "import d\nimport c\nfrom a import Message\nfrom a import b\n"),
        ("__all__ = ['Said', 'b']", "__all__ = ['b', 'Message']"),
        (
            "f('processor.mirror.m', 'processor.mirror:Said')",
            "f('processor.repository.m', 'processor.repository:Message')",
        ),
        ("f({'tell': 1}, 'processor.mirror')", "f({'tell': 1}, 'processor.repository')"),
        ('"""Old."""\ndef f():\n    "Old."\n    return 1  # old\n', '"""New."""\n\n\ndef f():\n    return (1)\n'),
        ("x = 1\n'of x'\n", "x = 1\n"),
        ("mirror = place = 1", "mirror = place = 1"),
    ],
)
def test_renames_in_the_table_and_non_code_are_no_difference(before, after):
    assert differs(before, after) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1", "x = 2"),
        ("Said()", "Said()"),
        ("Other()", "Message()"),
        ("f('text Said')", "f('text Message')"),
        ("from a import b", "from a import b, c"),
        ("import a\nf()\nimport b", "import a\nimport b\nf()"),
        ("def f():\n    import a\n", "import a\ndef f(): ...\n"),
        ("admit()", "check_capacity()"),
        ("processor = x\nprocessor.mirror.m()", "processor = x\nprocessor.repository.m()"),
    ],
)
def test_everything_else_is_listed(before, after):
    assert [entry.splitlines()[0] for entry in differs(before, after)] == ["differs: processor/a.py"]


def test_listed_module_shows_its_lines():
    assert differs("Said(1)\n", "Message(2)\n") == [
        "differs: processor/a.py\n--- processor/a.py\n+++ processor/a.py\n@@ -1 +1 @@\n-Message(1)\n+Message(2)"
    ]


def test_name_may_be_mapped_in_one_package_only():
    assert differs("x.admit()", "x.check_capacity()", path="processor/sessions/batcher.py") == []


def test_files_are_compared_at_their_new_location():
    base = {
        "processor/mirror/__init__.py": "",
        "processor/mirror/mirror.py": "x = 1",
        "processor/package/place.py": "x = 2",
        "processor/gone.py": "",
    }
    head = {
        "processor/repository/__init__.py": "",
        "processor/repository/mirror.py": "x = 1",
        "processor/repository/location.py": "x = 2",
        "processor/new.py": "",
    }
    assert compare(base, head, Table.parse(TABLE)) == [
        "only in base: processor/gone.py",
        "only in head: processor/new.py",
    ]


def test_longer_import_name_is_the_same_place():
    table = '[modules]\nprocessor = "freshet_serving.processor"\nmodels = "freshet_serving.models"\n'
    before = "import processor.clock\nfrom models.data import files\nmodels = processor.clock.x\nmodels.f('models')\n"
    after = (
        "import freshet_serving.processor.clock\nfrom freshet_serving.models.data import files\n"
        "models = freshet_serving.processor.clock.x\nmodels.f('models')\n"
    )
    assert differs(before, after, table) == []


def test_merged_names_are_listed():
    assert differs("Said(Message)", "Message(Message)") == ["two names have become one: processor/a.py: Message"]
    swapped = '[names]\na = "b"\nb = "a"\n'
    assert differs("a(b)", "b(a)", swapped) == []
    assert differs("a(c)", "b(b)", '[names]\na = "b"\nc = "b"\n') == ["two names have become one: processor/a.py: b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[names", "expected TOML"),
        ("[name]\na = 'b'", r"expected the tables \[modules\] and \[names\], got \[name\]"),
        ("[names]\na = 'b.c'", "expected two names, got 'a' = 'b.c'"),
        ("[names]\na = 1", "expected two names, got 'a' = 1"),
        ("[modules]\n'a.' = 'b'", "expected two modules, got 'a.' = 'b'"),
    ],
)
def test_unusable_table_is_refused(text, message):
    with pytest.raises(TableError, match=message):
        Table.parse(text)


def test_two_files_for_one_place_are_refused():
    table = Table.parse('[modules]\n"processor.a" = "processor.b"\n')
    with pytest.raises(TableError, match="expected one file for processor/b"):
        compare({"processor/a.py": "", "processor/b.py": ""}, {}, table)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository of two commits, of which the second renames."""

    def git(*arguments):
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    git("init")
    (tmp_path / "processor").mkdir()
    module = tmp_path / "processor" / "a.py"
    (tmp_path / "serving").symlink_to("processor")
    for text in ("class Said: ...\n", "class Message: ...\n"):
        module.write_text(text)
        git("add", ".")
        git("commit", "-m", text)
    monkeypatch.setattr("tests.structure.same.ROOT", tmp_path)
    return tmp_path


def test_commits_are_compared_by_the_command(repository, capsys):
    table, nothing = repository / "names.toml", repository / "nothing.toml"
    table.write_text(TABLE)
    nothing.write_text("")
    assert sources_at("HEAD~1", ["processor", "serving"]) == {"processor/a.py": "class Said: ...\n"}
    assert main(["HEAD~1", "HEAD", "--names", str(table)]) == 0
    assert capsys.readouterr().out == "the same\n"
    assert main(["HEAD~1", "HEAD", "--names", str(nothing)]) == 1
    assert "-class Said:" in capsys.readouterr().out
    assert main(["nowhere", "HEAD", "--names", str(table)]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert main(["HEAD~1", "HEAD", "--names", str(repository / "absent.toml")]) == 2
