"""Sections of a manifest, parsed, written and checked by the extensions that offer them (processor.ports).

A section is a key of model.json beside the format's own; Manifest.sections has their values by key, in the order of the
file. A section whose extension is not there is refused by its name: skipping it would serve another model.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.input_fillers import InputFiller
from freshet_serving.processor.ports import ENGINE, Section, missing

Sections = Mapping[str, Any]


def parse_sections(document: dict[str, Any], own: Container[str]) -> dict[str, Any]:
    """Take all keys but `own` out of a manifest's JSON, in place, and return the sections' values; raise BadInput."""
    sections = {}
    for key in [key for key in document if key not in own]:
        # It may be a mistake as well as a section: the message has to help with both.
        section = _section(key, f"manifest: unknown key {key[:64]!r}: as a section of an extension, it")
        if value := section.parse(document.pop(key)):
            sections[key] = value
    return sections


def dump_sections(sections: Sections) -> dict[str, Any]:
    """Return sections as JSON, without those that are empty; raise BadInput for one that nobody reads."""
    return {key: _section(key).dump(value) for key, value in sections.items() if value}


def check_sections(sections: Sections, manifest: Any) -> None:
    """Raise BadInput unless each section agrees with its manifest, and no input is filled by two of them."""
    filling: dict[str, str] = {}
    for key, value in sections.items():
        section = _section(key)
        section.check(value, manifest)
        for name in section.fillers(value):
            first = filling.setdefault(name, key)
            if first != key:
                raise BadInput(f"manifest.{key}: the input {name[:64]!r} is filled by manifest.{first} too")


def filled_by(sections: Sections) -> dict[str, InputFiller]:
    """Return the fillers of sections, by input."""
    return {name: filler for key, value in sections.items() for name, filler in _section(key).fillers(value).items()}


def section_lines(sections: Sections) -> list[tuple[str, Sequence[str]]]:
    """Return sections for people: the title and the lines of each."""
    return [(key.replace("_", " "), _section(key).lines(value)) for key, value in sections.items()]


def _section(key: str, subject: str = "") -> Section:
    """Return what reads a section; raise BadInput that names `subject` (by default the key) if nobody does."""
    make: Callable[[], Section] | None = ENGINE.get("sections", key)
    if make is None:
        raise missing(subject or f"manifest.{key[:64]}", key)
    return make()
