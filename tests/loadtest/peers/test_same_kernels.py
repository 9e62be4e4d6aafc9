"""Peers have an environment of their own: what they compute with needs only what all of them install."""

import json
import subprocess
import sys

import pytest

from loadtest.peers.measure import write_model
from loadtest.peers.roster import PEERS

# Raised for each library that peers do not install, as if it were not there.
ALONE = """
import importlib.metadata, json, re, sys

installed, left = set(), json.loads(sys.argv[1])
while left:
    name = re.match(r"[\\w.-]+", left.pop())[0].lower()
    if name in installed:
        continue
    installed.add(name)
    try:
        left += [line for line in importlib.metadata.requires(name) or () if "extra ==" not in line]
    except importlib.metadata.PackageNotFoundError:
        pass
names = importlib.metadata.packages_distributions()
installed |= {"freshet-serving"}

class Missing:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in names and not installed & {one.lower() for one in names[top]}:
            raise ModuleNotFoundError(f"No module named {top!r}", name=top)

sys.meta_path.insert(0, Missing())
from loadtest.peers.same_kernels import Scorer
"""
SCORE = """
import numpy as np
print(Scorer(sys.argv[2]).score(np.zeros((2, 26), np.int64), np.zeros((2, 13), np.float32)).tolist())
"""


def libraries():
    """What every peer that uses our kernels installs."""
    lists = [peer.requirements.read_text() for peer in PEERS if "same_kernels" in peer.server.read_text()]
    lines = [{line.partition("==")[0] for line in text.splitlines() if not line.startswith("#")} for text in lists]
    return sorted(set.intersection(*lines))


def run(code, *arguments):
    command = [sys.executable, "-c", code, json.dumps(libraries()), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_kernels_need_only_what_every_peer_installs():
    run(ALONE)


@pytest.mark.long
def test_peers_score_with_only_what_they_install(tmp_path):
    write_model(tmp_path, 100)
    first, second = json.loads(run(ALONE + SCORE, str(tmp_path / "bench" / "1")))
    assert first == second
