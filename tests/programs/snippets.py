"""What pages tell people to type, taken out of the pages to be run: `python -m tests.programs.snippets`.

A page is one story. Its fenced blocks are run in order, in one shell, in a fresh folder that holds the repository's
examples, with Freshet's ports replaced by free ones:

    ```bash                     run
    ```python                   run as a program of its own
    ```toml title="train.toml"  written to that file, as any block with a title is; TOML without one is only parsed
    ```text                     what the block before it printed: these lines, in this order, among others. `...` is
                                anything. A number with four digits behind its point or more is that number to
                                TOLERANCE (a score: the page sets train.seed), one with two or three is any number

`<!-- not run: why -->` before a block leaves it out, `<!-- needs: program -->` where that program is not installed.
This list says how many are left out, and why.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
    ROOT / "docs" / "how-to" / "replicas.md",
    ROOT / "docs" / "extensions" / "object_stores.md",
    ROOT / "docs" / "how-to" / "sizing.md",
)
RUN, SHOWN = ("bash", "python"), "text"
FENCE = re.compile(
    r"^(?:<!-- (?P<mark>not run|needs): (?P<why>[^\n]*?) -->\n+)?"
    r"```(?P<kind>\w*)(?: title=\"(?P<title>[\w./-]+)\")?\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
PORTS = {"FRESHET_HTTP_PORT": "8501", "FRESHET_GRPC_PORT": "8500", "FRESHET_ADMIN_PORT": "8502"}
OTHER_PORTS = ("6379", "8600", "8601", "8602", "9000", "9108")
MARK = "@@ snippet"
TIMEOUT_S = 600.0
TOLERANCE = 0.02
"""Processors round differently, and training makes more of it: 0.005 was seen."""
NUMBER = re.compile(r"\d+\\\.(\d{2,})(?:e\\?-\d+)?")


@dataclass(frozen=True, slots=True)
class Snippet:
    """A block of a page. line: where it begins. title: the file that it is written to, "" for none. not_run: why the
    page leaves it out, "" if it does not. needs: the program without which it is left out, "" for none."""

    line: int
    kind: str
    text: str
    title: str = ""
    not_run: str = ""
    needs: str = ""

    @property
    def left_out(self) -> str:
        """Why the block is not run on this machine, "" where it is."""
        missing = self.needs and shutil.which(self.needs) is None
        return self.not_run or (f"{self.needs} is not installed" if missing else "")

    @property
    def script(self) -> str:
        """The block as a piece of a shell script."""
        if self.title:
            folder = os.path.dirname(self.title)
            return f"mkdir -p ./{folder}\ncat > {self.title} <<'END OF FILE'\n{self.text}END OF FILE\n"
        if self.kind == "python":
            return f"python - <<'END OF PROGRAM'\n{self.text}END OF PROGRAM\n"
        return self.text if self.kind == "bash" else ""


def snippets(page: Path) -> list[Snippet]:
    """The blocks of a page, in order, but for those of no language."""
    text, blocks = page.read_text(), []
    for fence in FENCE.finditer(text):
        if fence["kind"]:
            line = text.count("\n", 0, fence.start("kind")) + 1
            said = {fence["mark"]: fence["why"]}
            block = Snippet(
                line, fence["kind"], fence["text"], fence["title"] or "", said.get("not run", ""), said.get("needs", "")
            )
            if block.kind == SHOWN and blocks and not block.not_run:
                before = blocks[-1]
                block = replace(
                    block, not_run="it belongs to what is not run" if before.not_run else "", needs=before.needs
                )
            blocks.append(block)
    return blocks


def commands(page: Path) -> list[str]:
    """The commands of a page as somebody types them, one a line or with its continued lines."""
    blocks = "".join(each.text for each in snippets(page) if each.kind == "bash")
    return [line for line in blocks.replace("\\\n", " ").splitlines() if line and line[0] not in " #}'"]


def run(page: Path, folder: Path, free_port: Callable[[], int]) -> None:
    """Runs a page in an empty folder; raises AssertionError, with what was printed, for a block that failed or printed
    something else than the page shows."""
    blocks = snippets(page)
    ports = {port: str(free_port()) for port in (*PORTS.values(), *OTHER_PORTS)}
    (folder / "examples").symlink_to(ROOT / "examples")
    path = _commands(folder / ".venv" / "bin")
    pieces = ["set -eo pipefail", "trap 'kill $(jobs -p) 2> /dev/null || true; wait' EXIT"]
    for number, block in enumerate(blocks):
        if not block.left_out and block.script:
            mark = f"printf '\\n{MARK} {number}\\n'"
            pieces.append(f"{mark}; {mark} >&2\n{_swapped(block.script, ports)}")
    # Nobody who reads the page has the variables of a test run.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FRESHET_", "COLUMNS"))}
    environment |= {"PYTHONPATH": str(ROOT), "PATH": f"{path}:{os.environ['PATH']}"}
    environment |= {name: ports[port] for name, port in PORTS.items()}
    environment["FRESHET_ADMIN"] = f"http://127.0.0.1:{ports['8502']}"
    # Not by pipes: a server that outlived the shell would keep them open.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            ["bash", "-c", "\n".join(pieces)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
        )
        try:
            code = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            code = process.wait(30)
        taken = {free: port for port, free in ports.items()}
        outputs: dict[int, str] = {}
        for file in (out, log):
            file.seek(0)
            for number, printed in _parts(_swapped(file.read().replace("\r", ""), taken)):
                outputs[number] = f"{outputs.get(number, '')}{printed}\n"
    last = max(outputs, default=0)
    assert code == 0, f"{page.name}:{blocks[last].line} ended with {code}\n{outputs.get(last, '')}"
    _compare(page, blocks, outputs)


def _parts(printed: str) -> Iterator[tuple[int, str]]:
    """What each block printed, by its number."""
    parts = re.split(rf"^{MARK} (\d+)\n", printed, flags=re.MULTILINE)
    return zip(map(int, parts[1::2]), parts[2::2])


def _commands(folder: Path) -> Path:
    """A folder as an installation's bin, with this checkout behind its commands."""
    folder.mkdir(parents=True)
    for name, command in (("freshet", "-m freshet_serving"), ("python", "")):
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {command} "$@"\n')
        (folder / name).chmod(0o755)
    (folder / "activate").touch()
    return folder


def _swapped(text: str, ports: dict[str, str]) -> str:
    return re.sub(rf"\b({'|'.join(ports)})\b", lambda port: ports[port[0]], text)


def _compare(page: Path, blocks: Sequence[Snippet], outputs: dict[int, str]) -> None:
    for number, block in enumerate(blocks):
        before = next((n for n in range(number - 1, -1, -1) if blocks[n].kind in RUN), None)
        if block.kind != SHOWN or block.left_out or before is None or before not in outputs:
            continue
        lines = iter(outputs[before].splitlines())
        for shown in filter(None, map(str.strip, block.text.splitlines())):
            assert any(shows(shown, line.strip()) for line in lines), (
                f"{page.name}:{block.line} shows {shown!r}, printed was\n{outputs[before]}"
            )


def shows(shown: str, printed: str) -> bool:
    """Return whether a line that a page shows stands for the line that was printed."""
    figures: list[float] = []

    def pattern_of(number: re.Match[str]) -> str:
        if len(number[1]) < 4:
            return r"\d+(?:\.\d+)?(?:e-?\d+)?"
        figures.append(float(number[0].replace("\\", "")))
        return r"(\d+(?:\.\d+)?(?:e-?\d+)?)"

    pattern = NUMBER.sub(pattern_of, re.escape(shown).replace(r"\.\.\.", ".*"))
    match = re.fullmatch(pattern, printed)
    return match is not None and all(
        abs(float(got) - figure) <= TOLERANCE for got, figure in zip(match.groups(), figures, strict=True)
    )


def main() -> None:
    """Says of each page how many of its blocks are run, and which are not, and why."""
    ran = left_out = 0
    for page in PAGES:
        blocks = snippets(page)
        out = [block for block in blocks if block.left_out]
        ran, left_out = ran + len(blocks) - len(out), left_out + len(out)
        print(f"{page.relative_to(ROOT)}: {len(blocks) - len(out)} blocks, {len(out)} not run")
        for block in out:
            print(f"    line {block.line}, {block.kind}: {block.left_out}")
    print(f"{ran} blocks are run, written or compared; {left_out} are not")


if __name__ == "__main__":
    main()
