"""Generate docs/reference/options.md from ServeConfig's fields (`make docs-reference`)."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from freshet_serving.processor.options import default_of
from freshet_serving.serving.serve_config import GROUP_KINDS, OPTIONS, SECTIONS

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "options.md"
INTRODUCTION = """# Options of `freshet serve`

Made by `make docs-reference` of the options themselves. Each is a flag (`--http-port`), an environment variable
(`FRESHET_HTTP_PORT`) and a key of the TOML file given as `--config` or `FRESHET_CONFIG` (`http_port`); the first of
these that is set counts. `freshet serve --help-all` lists them too. When to turn one, and what it was measured to do:
[tuning.md](../how-to/tuning.md).
"""
HEAD = "| option | default | what |\n|---|---|---|\n"


def page() -> str:
    """Return the page's text."""
    parts = [INTRODUCTION]
    for heading, options in groupby(OPTIONS, lambda each: each[1].heading):
        rows = []
        for field, option in options:
            what = " ".join(filter(None, (f"{option.help}.", option.facts))).replace("<", "&lt;").replace("|", "\\|")
            rows.append(f"| `{field.name}` | {default_of(field)} | {what} |\n")
        parts.append(f"## {heading}\n\n{HEAD}{''.join(rows)}")
    keys = ", ".join(f"`{key}`" for key in GROUP_KINDS)
    groups, model = SECTIONS
    parts.append(
        "## Sections of the file\n\n"
        f"- `[{groups}.NAME]` is a group of sessions of its own ([tuning.md](../how-to/tuning.md)). What is left out\n"
        f"  is as for the process: {keys}.\n"
        f"- `[{model}.NAME]` is the policy of a model's versions ([models.md](../how-to/models.md)).\n"
    )
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
