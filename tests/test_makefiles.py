"""The targets of the two Makefiles: few at the root, each explained, and every mention of one leads to it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAKEFILES = {"": (ROOT / "Makefile").read_text(), "-C loadtest ": (ROOT / "loadtest" / "Makefile").read_text()}
MOST_AT_THE_ROOT = 22
TEXTS = ("*.md", "*.py", "*.yml", "*.yaml", "*.toml", "*.txt", "*.json")
FOLDERS = (".ci", ".github", "docs", "examples", "freshet_serving", "processor", "compiler", "models", "serving")
FOLDERS += ("loadtest", "generators", "deploy", "tests")
MENTION = re.compile(r'(?:[`"]|^|run: )make (-C loadtest )?([a-z][\w/.-]*)((?: [A-Z_]+=(?:"[^"`]*"|\S+))*)')


def rules(makefile):
    """Targets that have a name to type -> their line of help, or an empty string."""
    return dict(re.findall(r"^([a-z][a-z-]*):[^=#\n]*(?:## (.*))?$", makefile, re.MULTILINE))


def texts():
    """Yield (path, text) of what may name a target; the frozen corpus and what a run writes beside reports do not."""
    paths = [path for pattern in TEXTS for path in ROOT.glob(pattern)]
    paths += [ROOT / "Dockerfile", ROOT / ".pre-commit-config.yaml", *(ROOT / ".ci").iterdir()]
    paths += [path for folder in FOLDERS for pattern in TEXTS for path in (ROOT / folder).rglob(pattern)]
    for path in paths:
        if "frozen" not in path.parts:
            yield path.relative_to(ROOT).as_posix(), path.read_text()


def mentions(text, code):
    """Yield (folder, target, variables) of each `make TARGET`; at the beginning of a line only where lines are code."""
    fenced = code
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        for found in MENTION.finditer(line.replace('\\"', '"')):
            if found.start() > 0 or fenced or not line.startswith("make"):
                yield found[1] or "", found[2].rstrip("."), re.findall(r"([A-Z_]+)=", found[3])


def test_root_makefile_has_few_targets():
    assert len(rules(MAKEFILES[""])) <= MOST_AT_THE_ROOT


@pytest.mark.parametrize("makefile", MAKEFILES.values(), ids=["root", "loadtest"])
def test_every_target_is_documented_and_none_is_a_file(makefile):
    found = rules(makefile)
    assert [name for name, help in found.items() if not help and name not in ("help", "ready")] == []
    assert re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split() == list(found)


def test_target_name_belongs_to_one_makefile():
    assert set(rules(MAKEFILES[""])) & set(rules(MAKEFILES["-C loadtest "])) == {"help"}


def test_every_mentioned_target_exists_and_takes_its_variables():
    count, missing = 0, []
    for path, text in texts():
        for folder, target, variables in mentions(text, code=path.startswith(".ci/")):
            count += 1
            makefile = MAKEFILES[folder]
            known = re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE)
            if not known or not all(f"$({name})" in makefile for name in variables):
                missing.append((path, folder + target, variables))
    assert missing == []
    assert count > 300


def test_kernels_are_compiled_anew_when_a_module_of_theirs_changes():
    listed = {text for text in MAKEFILES[""].split("KERNELS :=")[1].split("\n\n")[0].split() if text.endswith(".py")}
    folders = {path.parent.relative_to(ROOT) for path in ROOT.glob("processor/kernels/*.py")}
    for folder in ("processor", "models"):
        for path in (ROOT / folder).rglob("*.py"):
            if (
                re.search(r"^@kernel\b", path.read_text(), re.MULTILINE)
                and path.parent.relative_to(ROOT) not in folders
            ):
                assert path.relative_to(ROOT).as_posix() in listed
