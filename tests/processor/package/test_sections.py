"""Sections of a manifest belong to extensions: kept as they are, refused by name where nobody reads them."""

import json
from dataclasses import replace

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import InputFiller, Manifest, section_lines
from freshet_serving.processor.ports import ENGINE, Extension, Section
from tests.support import packages

PLAIN = replace(packages.manifest(), executables=[])


def check(names, manifest):
    if not set(names) <= {i.name for i in manifest.inputs}:
        raise BadInput("manifest.sand: expected names of inputs")


@pytest.fixture
def sand(monkeypatch):
    """Offers the sections `sand` and `gravel`: lists of inputs that they fill."""
    section = Section(
        parse=list,
        dump=list,
        check=check,
        fillers=lambda names: {name: InputFiller("grains", "sand", ("user",)) for name in names},
        lines=lambda names: [f"fills {name}" for name in names],
    )
    monkeypatch.setattr(
        ENGINE, "_known", {"sand": Extension(sections={"sand": lambda: section, "gravel": lambda: section})}
    )


def test_sections_are_kept_in_the_order_of_the_file(sand):
    document = json.loads(PLAIN.to_json()) | {"sand": ["tags"], "gravel": [PLAIN.inputs[-1].name]}
    read = Manifest.from_json(json.dumps(document).encode())
    assert list(read.sections) == ["sand", "gravel"]
    assert read.fillers["tags"] == InputFiller("grains", "sand", ("user",))
    assert json.loads(read.to_json()) == document
    assert Manifest.from_json(read.to_json()) == read != PLAIN
    assert section_lines(read.sections)[0] == ("sand", ["fills tags"])


def test_section_that_says_nothing_is_not_written(sand):
    assert replace(PLAIN, sections={"sand": []}).to_json() == PLAIN.to_json()
    empty = json.dumps(json.loads(PLAIN.to_json()) | {"sand": []}).encode()
    assert Manifest.from_json(empty) == PLAIN


def test_section_is_checked_against_its_manifest(sand):
    with pytest.raises(BadInput, match=r"manifest\.sand: expected names of inputs"):
        replace(PLAIN, sections={"sand": ["shells"]}).to_json()


def test_input_that_two_sections_fill_is_refused(sand):
    with pytest.raises(BadInput, match=r"manifest\.gravel: the input 'tags' is filled by manifest\.sand too"):
        replace(PLAIN, sections={"sand": ["tags"], "gravel": ["tags"]}).to_json()


@pytest.mark.parametrize("key", ["sandd", "sections", "fillers", ""])
def test_key_that_nobody_reads_is_refused_by_name(sand, key):
    document = json.dumps(json.loads(PLAIN.to_json()) | {key: {}}).encode()
    with pytest.raises(BadInput, match=f"manifest: unknown key '{key}': as a section .* the extension '{key}'"):
        Manifest.from_json(document)


def test_section_that_a_program_gives_is_refused_too(sand):
    with pytest.raises(BadInput, match=r"manifest\.clay needs the extension 'clay': this installation does not have"):
        replace(PLAIN, sections={"clay": 1})
