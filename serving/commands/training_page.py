"""`make docs-reference`: docs/reference/training-file.md, every key of a training file.

Names, types and defaults are read off the dataclasses that the file is read into; what a key is for is said here, and a
key without a line, or a line without a key, ends the making of the page.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from freshet_serving.models.config.train_config import TrainConfig
from freshet_serving.serving.commands.training_keys import SECTIONS, FileSection

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "training-file.md"
INTRODUCTION = """# The training file

Made by `make docs-reference` of what `freshet train --config` reads. `--set section.key=value` sets any of these keys
for one run. A whole file, with what belongs together: [train.md](../how-to/train.md). A key that does not exist, or a
value that cannot be, stops the command with one line that names it.
"""
HEAD = "| key | type | default | what |\n|---|---|---|---|\n"
NAMES = {str: "string", int: "integer", float: "number", bool: "true or false"}
SEVERAL = {str: "strings", int: "integers", float: "numbers"}


def page() -> str:
    """The page's text; raises KeyError for a section or key that is told of and not there, or there and not told of."""
    if (told := [each.section for each in SECTIONS]) != [f.name for f in dataclasses.fields(TrainConfig)]:
        raise KeyError(f"sections: {told}")
    return "\n".join([INTRODUCTION, *(_section(each) for each in SECTIONS)])


def _section(section: FileSection) -> str:
    text = f"## {section.title}\n\n{section.text}\n"
    if section.kind is None:
        return text
    keys = {f.name.rstrip("_"): f for f in dataclasses.fields(section.kind) if f.name not in section.made}
    if unlike := keys.keys() ^ section.keys.keys():
        raise KeyError(f"{section.title}: {', '.join(sorted(unlike))}")
    hints = typing.get_type_hints(section.kind)
    rows = (
        f"| `{key}` | {_type(hints[keys[key].name])} | {_default(keys[key], section.defaults)} | {what} |\n"
        for key, what in section.keys.items()
    )
    return f"{text}\n{HEAD}{''.join(rows)}"


def _type(hint: Any) -> str:
    if isinstance(hint, types.UnionType):
        return " or ".join(_type(one) for one in typing.get_args(hint) if one is not types.NoneType)
    if isinstance(hint, types.GenericAlias):
        return f"list of {SEVERAL[typing.get_args(hint)[0]]}"
    return NAMES[hint]


def _default(field: dataclasses.Field[Any], said: Mapping[str, str]) -> str:
    """said: in words, of keys whose default is not what stands in the dataclass."""
    if field.name.rstrip("_") in said:
        return said[field.name.rstrip("_")]
    if field.default is dataclasses.MISSING:
        return "has to be given"
    default = field.default
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, str | Collection):
        return f'`"{default}"`' if default else ""
    return f"`{default}`"


if __name__ == "__main__":
    PAGE.write_text(page())
