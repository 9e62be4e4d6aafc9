"""Add the tables that are made of the code to their pages of the reference: a hook of the site's builder.

`make docs` writes them into build/reference first (generators.reference).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

TABLES = Path(__file__).parents[2] / "build" / "reference"
PAGES = ("admin.md", "commands.md", "options.md", "python.md", "training-file.md")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    folder, _, name = page.file.src_uri.rpartition("/")
    if folder != "reference" or name not in PAGES:
        return markdown
    return f"{markdown}\n{(TABLES / name).read_text()}"
