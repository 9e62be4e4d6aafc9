"""Bills of materials: for each distribution, the libraries that come along where it is installed, as CycloneDX JSON.

The wheel is installed into an environment of its own, at the versions of constraints.txt, and what is there is listed:
so the bill is of what was resolved, not of what was asked for. Without times and serial numbers:
the same wheel and the same constraints give the same bill.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SUFFIX = ".cdx.json"
VALID = """
import pathlib, sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
sys.exit(str(JsonStrictValidator(SchemaVersion.V1_6).validate_str(pathlib.Path(sys.argv[1]).read_text()) or "") or 0)
"""


def write_bill(wheel: Path, constraints: Path, work: Path, tools: Path) -> Path:
    """The bill of one wheel, beside it. work: a folder for the environment; tools: the folder of cyclonedx-py. Raises
    CalledProcessError."""
    environment = work / wheel.name.partition("-")[0]
    # Without pip: it comes with no distribution.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    pip = [tools / "python", "-m", "pip", "--python", environment / "bin" / "python", "install", "--quiet"]
    subprocess.run([*pip, "--disable-pip-version-check", "--constraint", constraints, wheel], check=True)
    bill = wheel.with_name(wheel.name.removesuffix("-py3-none-any.whl") + SUFFIX)
    listed = [tools / "cyclonedx-py", "environment", "--output-reproducible", "--of", "JSON", "-o", bill]
    subprocess.run([*listed, environment / "bin" / "python"], check=True, stderr=subprocess.DEVNULL)
    bill.write_text(json.dumps(named_after(json.loads(bill.read_text()), wheel.name), indent=2) + "\n")
    subprocess.run([tools / "python", "-c", VALID, bill], check=True)
    return bill


def named_after(said: dict[str, Any], wheel: str) -> dict[str, Any]:
    """The bill as one of the wheel's, which is told apart from what it needs, and not by where it lay."""
    (own,) = (one for one in said["components"] if wheel.startswith(f"{one['name'].replace('-', '_')}-"))
    for reference in own["externalReferences"]:
        if reference["type"] == "distribution":
            reference["url"] = wheel
    others = [one for one in said["components"] if one is not own]
    return {**said, "metadata": {**said["metadata"], "component": own}, "components": others}


def check_bill(bill: Path, name: str, needs: set[str]) -> list[str]:
    """What is wrong with a bill of this distribution, which needs these libraries, a line each."""
    said: dict[str, Any] = json.loads(bill.read_text())
    there = {_plain(one["name"]) for one in said.get("components", [])}
    found = [f"{bill.name}: {need} wanted" for need in sorted({*map(_plain, needs)} - there)]
    if said["metadata"]["component"]["name"] != name:
        found.append(f"{bill.name}: a bill of {name} wanted")
    if "file:" in bill.read_text():
        found.append(f"{bill.name}: no file of this machine wanted")
    unversioned = [one["name"] for one in said.get("components", []) if not one.get("version")]
    return found + [f"{bill.name}: a version of {one} wanted" for one in unversioned]


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
