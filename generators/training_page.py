"""Generate the tables of docs/reference/training-file.md: every section and key of a training file."""

from __future__ import annotations

from freshet_serving.models.config.file_keys import FileSection, file_sections

HEAD = "| key | type | default | description |\n|---|---|---|---|\n"


def page() -> str:
    return "\n".join(map(_section, file_sections()))


def _section(section: FileSection) -> str:
    text = f"## [{section.title}]\n\n{section.help}\n"
    if not section.keys:
        return text
    rows = (f"| `{key.name}` | {key.type} | {key.default} | {key.help} |\n" for key in section.keys)
    return f"{text}\n{HEAD}{''.join(rows)}"
