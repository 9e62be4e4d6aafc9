"""Add repository files to the site: a hook of ProperDocs.

Pages link to files outside docs/ (reports, examples, ARCHITECTURE.md), because they are read in the repository too.
Such a file becomes part of the site under project/, with the files it links to itself; a link to a folder becomes plain
text. So every link of the site works, and ProperDocs checks it. PLACED are the files that have a place in the menu.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from properdocs.structure.files import File

ROOT = Path(__file__).parents[2]
DOCS, PROJECT = "docs", "project"
PLACED = ("SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md")
# Search rank by the beginning of a page's address; other pages have 1, other files of the repository are not searched.
BOOSTS = {
    "how-to/": 2.0,
    "tutorials/": 2.0,
    "extensions/": 2.0,
    "decisions/": 0.05,
    f"{PROJECT}/SECURITY.md": 1.0,
    f"{PROJECT}/CONTRIBUTING.md": 1.0,
    f"{PROJECT}/CHANGELOG.md": 0.1,
}
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()#\s]+)(#[^()\s]*)?\)")
FENCE = re.compile(r"^( *)(`{3,}).*?^\1\2`*$", re.DOTALL | re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    pages = [f"{DOCS}/{file.src_uri}" for file in files if file.is_documentation_page()]
    waiting, met = [*PLACED, *(target for path in pages for target in _targets(path))], set()
    while waiting:
        path = waiting.pop()
        if path in met or path.startswith(f"{DOCS}/") or not (ROOT / path).is_file():
            continue
        met.add(path)
        files.append(File.generated(config, f"{PROJECT}/{path}", abs_src_path=str(ROOT / path)))
        if path.endswith(".md"):
            waiting += _targets(path)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    uri = page.file.src_uri
    path = _path_of(uri)
    boost = next((boost for start, boost in BOOSTS.items() if uri.startswith(start)), None)
    if boost is not None:
        page.meta["search"] = {"boost": boost}
    elif uri.startswith(f"{PROJECT}/"):
        page.meta["search"] = {"exclude": True}
    if uri.startswith(f"{PROJECT}/"):
        # GitHub begins a table right below a line of text, Python-Markdown below an empty one.
        markdown = re.sub(r"^([^|\n].*\n)(?=\|)", r"\1\n", markdown, flags=re.MULTILINE)

    def moved(link: re.Match[str]) -> str:
        text, target, fragment = link[1], link[2], link[3] or ""
        if _elsewhere(target):
            return link[0]
        found = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if (ROOT / found).is_dir():
            return text
        return f"[{text}]({posixpath.relpath(_uri_of(found), posixpath.dirname(uri))}{fragment})"

    return _outside_fences(markdown, lambda text: LINK.sub(moved, text))


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    return re.sub(r"<td.*?</td>", lambda cell: _cell(cell[0]), html, flags=re.DOTALL)


def _cell(html: str) -> str:
    # In a table's code GitHub reads `\|` as one letter, Python-Markdown as two.
    html = html.replace(r"\|", "|")
    # A long name may break after an underscore, so that it leaves room for the text beside it.
    return re.sub(r"<code>[^<]*</code>", lambda code: code[0].replace("_", "_<wbr>"), html)


def _targets(path: str) -> list[str]:
    text = FENCE.sub("", (ROOT / path).read_text())
    found = (target for _, target, _ in LINK.findall(text) if not _elsewhere(target))
    return [posixpath.normpath(posixpath.join(posixpath.dirname(path), target)) for target in found]


def _outside_fences(text: str, change: Callable[[str], str]) -> str:
    parts, at = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, change(text[at:])])


def _elsewhere(target: str) -> bool:
    return re.match(r"[a-z]+:", target) is not None


def _path_of(uri: str) -> str:
    """Return the repository path of a page of the site."""
    return uri.removeprefix(f"{PROJECT}/") if uri.startswith(f"{PROJECT}/") else f"{DOCS}/{uri}"


def _uri_of(path: str) -> str:
    """Return the site path of a file of the repository."""
    return path.removeprefix(f"{DOCS}/") if path.startswith(f"{DOCS}/") else f"{PROJECT}/{path}"
