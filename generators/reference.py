"""Generate the tables of docs/reference from the code, into build/reference: `make docs` adds them to their pages.

The pages themselves are written by hand and say where the same is shown without the site: `--help`, `--help-all`,
`--help-keys`, the admin port's OpenAPI document, `help()`. What is generated is not committed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from generators import admin_page, commands_page, options_page, python_page, training_page

FOLDER = Path(__file__).parents[1] / "build" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "admin.md": admin_page.page,
    "commands.md": commands_page.page,
    "options.md": options_page.page,
    "python.md": python_page.page,
    "training-file.md": training_page.page,
}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())


if __name__ == "__main__":
    main()
