"""What of the peers can be told without installing one."""

import tomllib
from pathlib import Path

import pytest

from loadtest.peers import bodies
from loadtest.peers.roster import PEERS, chosen

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("peer", PEERS, ids=lambda p: p.name)
def test_peer_has_a_server_pinned_requirements_and_a_page(peer):
    assert peer.body in bodies.KINDS
    compile(peer.server.read_text(), peer.server.name, "exec")
    lines = [line for line in peer.requirements.read_text().splitlines() if not line.startswith("#")]
    assert lines
    assert all("==" in line and "//" not in line for line in lines)
    assert "Untuned:" in (peer.server.parent / "README.md").read_text()


def test_peers_are_not_installed_with_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    assert not [
        d for d in wanted for name in ("mosec", "litserve", "bentoml", "mlserver", "ray", "pytriton") if name in d
    ]


def test_peers_are_chosen_by_name():
    assert [p.name for p in chosen("mosec, ray")] == ["mosec", "ray"]
    assert chosen("") == list(PEERS)
    with pytest.raises(ValueError, match="one of mosec"):
        chosen("nothing")
