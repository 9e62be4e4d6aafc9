"""The site: built without a warning, every link and anchor leads somewhere, and nothing is fetched from elsewhere."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from generators import reference

ROOT = Path(__file__).parents[1]
PROPERDOCS = ROOT / ".venv" / "docs" / "bin" / "properdocs"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PROPERDOCS.exists(), reason="what builds the site is not here: make .venv/.docs"),
]
PLACED = ("SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md")


@pytest.fixture(scope="module", autouse=True)
def tables():
    reference.main()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    # Without --quiet, which hides warnings from --strict.
    command = [PROPERDOCS, "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_build_fails_for_a_link_to_a_missing_anchor(tmp_path):
    for name in ("docs", "properdocs.yml", *PLACED):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    shutil.copytree(reference.FOLDER, tmp_path / "build" / "reference")
    page = tmp_path / "docs" / "how-to" / "client.md"
    page.write_text(page.read_text() + "\n[gone](access.md#no-such-heading)\n")
    done = subprocess.run(["make", "-n", "docs"], cwd=ROOT, capture_output=True, text=True, check=True)
    (options,) = re.findall(r"properdocs (build .*)$", done.stdout, re.MULTILINE)
    command = [PROPERDOCS, *options.split(), "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert built.returncode != 0
    assert "no-such-heading" in built.stderr


def test_every_page_exists_and_fetches_nothing(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 100
    for page in pages:
        fetched = re.findall(
            r"<(?:script|img|link rel=\"stylesheet\")[^>]*(?:src|href)=\"(https?:[^\"]*)", page.read_text()
        )
        assert fetched == [], page.name


def test_linked_files_are_part_of_the_site(site):
    for name in (
        "ARCHITECTURE.html",
        "examples/publish_delta.go",
        "loadtest/results/follow.html",
        "examples/deepfm.toml",
    ):
        assert (site / "project" / name).is_file(), name


def test_search_finds_pages_and_excludes_reports(site):
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    pages = {entry["location"].partition("#")[0] for entry in entries}
    assert "tutorials/quickstart.html" in pages
    project = {page for page in pages if page.startswith("project/")}
    assert project == {"project/CHANGELOG.html", "project/CONTRIBUTING.html", "project/SECURITY.html"}
    boosts = {entry["location"]: entry.get("boost", 1) for entry in entries}
    assert boosts["decisions/0001-own-safetensors-reader-and-writer.html"] < boosts["extensions/remote_rows.html"]
