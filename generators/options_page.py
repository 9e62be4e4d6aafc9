"""Generate the tables of docs/reference/options.md from ServeConfig's fields."""

from __future__ import annotations

from itertools import groupby

from freshet_serving.processor.options import default_of
from freshet_serving.serving.serve_config import GROUP_KINDS, OPTIONS, SECTIONS

HEAD = "| option | default | description |\n|---|---|---|\n"


def page() -> str:
    parts = []
    for heading, options in groupby(OPTIONS, lambda each: each[1].heading):
        rows = []
        for field, option in options:
            text = " ".join(filter(None, (f"{option.help}.", option.facts))).replace("<", "&lt;").replace("|", "\\|")
            rows.append(f"| `{field.name}` | {default_of(field)} | {text} |\n")
        parts.append(f"## {heading}\n\n{HEAD}{''.join(rows)}")
    keys = ", ".join(f"`{key}`" for key in GROUP_KINDS)
    parts.append(f"## Keys of a group\n\nA section `[{SECTIONS[0]}.NAME]` of the file may have {keys}.\n")
    return "\n".join(parts)
