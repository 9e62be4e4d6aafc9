"""The pages: every block is run or says why not, links lead somewhere, and each has its place in the site."""

import posixpath
import re
import tomllib
from pathlib import Path

import pytest

from tests.programs.snippets import PAGES, RUN, SHOWN, commands, shows, snippets

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TUTORIALS = [page for page in PAGES if page.parent.name == "tutorials"]
EVERY = [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md"))]
FENCES = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)


def prose(page):
    return FENCES.sub("", page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_block_is_run_or_says_why_not(page):
    for block in snippets(page):
        assert block.kind in (*RUN, SHOWN, "toml", "json"), f"{page.name}:{block.line}: {block.kind}"
        if block.kind == "toml":
            tomllib.loads(block.text)


def test_few_blocks_are_skipped():
    blocks = [block for page in PAGES for block in snippets(page)]
    left_out = [block for block in blocks if block.not_run]
    assert len(blocks) > 100
    assert len(left_out) <= 16, "a block that cannot run here needs a reason, and somebody who counts it"


@pytest.mark.parametrize("installed", [True, False])
def test_missing_program_skips_only_its_blocks(installed, monkeypatch, tmp_path):
    monkeypatch.setattr("shutil.which", lambda program: "/bin/true" if installed else None)
    (tmp_path / "page.md").write_text(
        "<!-- needs: redis-server -->\n```bash\nredis-server\n```\n```text\nready\n```\n"
        "```bash\nls\n```\n```text\na\n```\n"
    )
    blocks, why = snippets(tmp_path / "page.md"), "" if installed else "redis-server is not installed"
    assert [block.left_out for block in blocks] == [why, why, "", ""]
    assert [block.not_run for block in blocks] == [""] * 4


def test_quickstart_reaches_scores_in_at_most_ten_commands():
    page = DOCS / "tutorials" / "quickstart.md"
    told = commands(page)
    assert told[0].startswith("git clone")
    assert any(":predict" in command for command in told)
    assert len(told) <= 10, told


def test_shown_line_matches_different_times_but_equal_scores():
    assert shows("p50 1.20 ms of 2000 rows", "p50 0.9 ms of 2000 rows")
    assert shows("0.512 ms a request", "1.2e-05 ms a request")
    assert shows("generation 1.4: ... rows", "generation 1.4: 1,024 rows")
    assert not shows("generation 1.4", "generation 1.5")
    assert not shows("2000 rows", "2001 rows")
    assert shows("AUC 0.7512, p99 1.20 ms", "AUC 0.7503, p99 9.15 ms")
    assert not shows("AUC 0.7512", "AUC 0.7293")
    assert shows('{"outputs":[[0.3949],[0.00012]]}', '{"outputs":[[0.394912],[1.2e-05]]}')
    assert not shows('{"outputs":[[0.3949],[0.4633]]}', '{"outputs":[[0.3949],[0.4333]]}')


def test_every_tutorial_page_is_listed():
    text = (DOCS / "tutorials" / "index.md").read_text()
    assert [page.name for page in TUTORIALS if page.name != "index.md" and f"({page.name})" not in text] == []


def test_every_link_leads_to_a_file():
    for page in EVERY:
        for target in re.findall(r"\]\(([^()\s#]+)(?:#[^()\s]*)?\)", prose(page)):
            if not re.match(r"[a-z]+:", target):
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


def test_every_page_has_one_place_in_the_site():
    nav = (ROOT / "properdocs.yml").read_text().partition("\nnav:\n")[2]
    placed = re.findall(r"([\w/-]+\.md)$", nav, re.MULTILINE)
    project = {name for name in placed if name.startswith("project/")}
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert len(placed) == len(set(placed))
    assert set(placed) - project <= pages
    assert project == {"project/SECURITY.md", "project/CHANGELOG.md", "project/CONTRIBUTING.md"}
    assert all((ROOT / name.removeprefix("project/")).exists() for name in project)
    assert {page for page in pages - set(placed) if not page.startswith("decisions/0")} == set()


def test_every_mentioned_page_exists():
    rooms = ("processor", "compiler", "models", "serving", "loadtest", "generators", "tests")
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    files += [ROOT / name for name in ("Makefile", "ARCHITECTURE.md", "CHANGELOG.md", "SECURITY.md", "README.md")]
    files += [*(ROOT / "examples").glob("*.toml"), *(ROOT / "examples").glob("*.go")]
    for path in files:
        for name in re.findall(r"(?<![\w/.])docs/[\w/-]+\.(?:md|yml)", path.read_text()):
            assert (ROOT / posixpath.normpath(name)).exists(), f"{path.name}: {name}"


def test_list_or_table_follows_an_empty_line():
    """GitHub does without one, the site does not."""
    for page in DOCS.rglob("*.md"):
        lines = prose(page).splitlines()
        for before, line in zip(lines, lines[1:]):
            begins = re.match(r"- |\d+\. |\| ", line) and before.strip()
            assert not begins or re.match(r"\s*- |\s*\d+\. |\||\s", before), f"{page.name}: {line}"


def test_an_old_name_of_a_page_leads_to_a_page():
    config = (ROOT / "properdocs.yml").read_text()
    moved = re.findall(r"^        ([\w/-]+\.md): ([\w/-]+\.md)$", config, re.MULTILINE)
    assert moved
    for old, new in moved:
        assert not (DOCS / old).exists(), old
        assert (DOCS / new).exists(), new


@pytest.mark.parametrize(
    "term",
    [
        "backpressure",
        "load shedding",
        "quarantine",
        "circuit breaker",
        "graceful shutdown",
        "hot reload",
        "tail latency",
        "MVCC",
        "idempotent",
        "rate limit",
    ],
)
def test_the_docs_use_the_term_that_users_search_for(term):
    pages = [page for page in DOCS.rglob("*.md") if page.parent.name != "decisions"]
    assert any(term.lower() in page.read_text().lower() for page in pages)


def test_findings_name_tests_that_exist():
    page = (DOCS / "reference" / "findings-answered.md").read_text()
    named = re.findall(r"`([a-z0-9_/]+\.py)(?:::(\w+))?`", page)
    assert len(named) > 80
    sources = {path: (ROOT / "tests" / path).read_text() for path, _ in named}
    lost = [(path, name) for path, name in named if name and not re.search(rf"\bdef {name}\(", sources[path])]
    assert lost == []
