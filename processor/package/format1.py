"""Read and write manifests of format 1 as those of format 2: the one place that knows what format 1 says otherwise.

Format 1 has no subgraphs. Its executables have a role, `whole`, `user` or `candidate`, and a version whose dense graph
is divided has a user_width: `user` computes one vector u [requests, user_width]. The candidates' executables read one
matrix: their own columns and, after them, side columns that hold u, number i of u in row i // side_columns, column
i % side_columns. Their smallest bucket has rows enough for all of u. processor.running.side_columns gives such an
executable the two inputs that a version of format 2 has.
"""

from __future__ import annotations

from typing import Any

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.manifest_entries import FORMAT_1, SCORE, USER, WHOLE
from freshet_serving.processor.package.subgraphs import Described, Subgraph, divided

ROLES = ("whole", "user", "candidate")
USER_VECTOR = "u"
MAX_USER_WIDTH = 1 << 16


def to_format_2(raw: dict[str, Any]) -> int:
    """Give a manifest's JSON the keys of format 2, in place, and return its user_width; raise BadInput."""
    user_width = raw.pop("user_width", 0)
    if type(user_width) is not int or not 0 <= user_width <= MAX_USER_WIDTH:
        raise BadInput(f"manifest.user_width: expected 0 to {MAX_USER_WIDTH}, got {str(user_width)[:40]}")
    if "graphs" in raw:
        raise BadInput("manifest: unknown key 'graphs'")
    names = {"whole": WHOLE if user_width else SCORE, "user": USER, "candidate": SCORE}
    executables = raw.get("executables")
    roles = set()
    for entry in executables if isinstance(executables, list) else ():
        if isinstance(entry, dict):
            if "subgraph" in entry:
                raise BadInput("manifest.executables: unknown key 'subgraph'")
            role = entry.pop("role", "whole")
            if role not in ROLES:
                raise BadInput(f"manifest.executables.role: expected one of {', '.join(ROLES)}, got {str(role)[:40]!r}")
            roles.add(role)
            entry["subgraph"] = names[role]
    if (roles - {"whole"}) != ({"user", "candidate"} if user_width else set()):
        parts = "both" if user_width else "no"
        raise BadInput(f"manifest.user_width: {user_width} requires executables of {parts} parts")
    return user_width


def graphs_of(manifest: Described, user_width: int) -> dict[str, Subgraph]:
    """Return the subgraphs of a manifest of format 1."""
    return divided(manifest, [(USER_VECTOR, user_width)]) if user_width else {}


def to_format_1(document: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest's JSON with the keys of format 1, in its order, so that its signature can be checked."""
    graphs = document["graphs"]
    roles = {SCORE: "candidate", USER: "user", WHOLE: "whole"} if graphs else {SCORE: "whole"}
    old: dict[str, Any] = {}
    for key, value in document.items():
        if key == "graphs":
            old["user_width"] = graphs[USER]["outputs"][0]["dims"][1] if graphs else 0
        elif key == "executables":
            old[key] = [
                {"role" if k == "subgraph" else k: roles[v] if k == "subgraph" else v for k, v in entry.items()}
                for entry in value
            ]
        else:
            old[key] = value
    return old


def side_columns(manifest: Described) -> int:
    """Return the side columns of `score`, those that its smallest bucket needs to hold u; 0 without."""
    if manifest.format != FORMAT_1 or not manifest.graphs:
        return 0
    user_width = int(manifest.graphs[USER].outputs[0].dims[1])
    smallest: int = min(e.bucket for e in manifest.executables if e.subgraph == SCORE)
    return -(-user_width // smallest)
