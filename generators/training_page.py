"""Generate docs/reference/training-file.md, with every section and key of a training file (`make docs-reference`).

Names, types, defaults and help texts come from the dataclasses that the file is parsed into.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Collection
from pathlib import Path
from typing import Any

from freshet_serving.models.config.train_config import TrainConfig
from freshet_serving.processor.options import Option, options_of

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "training-file.md"
INTRODUCTION = """# The training file

Made by `make docs-reference` of what `freshet train --config` reads. `--set section.key=value` sets any of these keys
for one run. A whole file, with what belongs together: [train.md](../how-to/train.md). A key that does not exist, or a
value that cannot be, stops the command with one line that names it.
"""
HEAD = "| key | type | default | what |\n|---|---|---|---|\n"
NAMES = {str: "string", int: "integer", float: "number", bool: "true or false"}
SEVERAL = {str: "strings", int: "integers", float: "numbers"}


def page() -> str:
    """Return the page's text."""
    hints = typing.get_type_hints(TrainConfig)
    return "\n".join([INTRODUCTION, *(_section(each, hints[each.name]) for each in dataclasses.fields(TrainConfig))])


def _section(field: dataclasses.Field[Any], hint: Any) -> str:
    section = field.metadata["section"]
    title = f"{field.name}.{section.named}" if section.named else field.name
    text = f"## [{title}]\n\n{section.text}\n"
    kind: type[Any] = typing.get_args(hint)[-1] if typing.get_args(hint) else hint
    if not dataclasses.is_dataclass(kind):
        # The keys of this section are the user's.
        return text
    hints = typing.get_type_hints(kind)
    # A section's own options come before those that it inherits.
    inherited = {name for base in kind.__bases__ for name in getattr(base, "__dataclass_fields__", ())}
    options = sorted(options_of(kind), key=lambda each: each[0].name in inherited)
    rows = (
        f"| `{key.name.rstrip('_')}` | {_type(hints[key.name])} | {_default(key, option)} | {option.help} |\n"
        for key, option in options
    )
    return f"{text}\n{HEAD}{''.join(rows)}"


def _type(hint: Any) -> str:
    if isinstance(hint, types.UnionType):
        return " or ".join(_type(one) for one in typing.get_args(hint) if one is not types.NoneType)
    if isinstance(hint, types.GenericAlias):
        return f"list of {SEVERAL[typing.get_args(hint)[0]]}"
    return NAMES[hint]


def _default(field: dataclasses.Field[Any], option: Option) -> str:
    if option.empty:
        return option.empty
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
