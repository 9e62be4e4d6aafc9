"""What the site needs besides the pages: a hook of MkDocs.

Pages link to files of the repository that are no pages (reports, examples, ARCHITECTURE.md), as they have to be read in
the repository too. Such a file becomes part of the site, under project/, with whatever it links to itself; a folder
stays a word without a link. So no page of the site leads nowhere, and MkDocs checks every link.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
DOCS, PROJECT = "docs", "project"
SEARCHED = (f"{PROJECT}/SECURITY.md", f"{PROJECT}/CONTRIBUTING.md")
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()#\s]+)(#[^()\s]*)?\)")
FENCE = re.compile(r"^( *)(`{3,}).*?^\1\2`*$", re.DOTALL | re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    waiting = [f"{DOCS}/{file.src_uri}" for file in files if file.is_documentation_page()]
    met = set(waiting)
    while waiting:
        path = waiting.pop()
        if not path.endswith(".md"):
            continue
        for target in _targets(path):
            if target not in met and not target.startswith(f"{DOCS}/") and (ROOT / target).is_file():
                met.add(target)
                waiting.append(target)
                files.append(File.generated(config, f"{PROJECT}/{target}", abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    uri = page.file.src_uri
    path = _path_of(uri)
    if uri.startswith(f"{PROJECT}/"):
        page.meta["search"] = {} if uri in SEARCHED else {"exclude": True}
        # GitHub begins a table right below a line of text, Python-Markdown below an empty one.
        markdown = re.sub(r"^([^|\n].*\n)(?=\|)", r"\1\n", markdown, flags=re.MULTILINE)

    elif uri.startswith("decisions/"):
        # A page that helps is found before the reason for what it describes.
        page.meta["search"] = {"boost": 0.2}

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
    # In a table's code GitHub reads `\|` as one letter, Python-Markdown as two.
    return re.sub(r"<td.*?</td>", lambda cell: cell[0].replace(r"\|", "|"), html, flags=re.DOTALL)


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
    """Where a page of the site lies in the repository."""
    return uri.removeprefix(f"{PROJECT}/") if uri.startswith(f"{PROJECT}/") else f"{DOCS}/{uri}"


def _uri_of(path: str) -> str:
    """Where a file of the repository lies in the site."""
    return path.removeprefix(f"{DOCS}/") if path.startswith(f"{DOCS}/") else f"{PROJECT}/{path}"
