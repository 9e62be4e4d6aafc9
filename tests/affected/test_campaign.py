from types import SimpleNamespace

import pytest

from tests.affected import campaign
from tests.affected.campaign import Trial
from tests.affected.changes import here
from tests.mutants.operators import mutants

MODULE = "processor/clock.py"


class Played(Trial):
    """A trial whose tests fail as they are told: with the mutant, and without it."""

    def __init__(self, copy, fail, unsound=()):
        super().__init__(copy)
        self._source = (campaign.ROOT / MODULE).read_text()
        self.fail, self.broken = fail, unsound

    def failed(self, files, *options):
        mutated = (self._copy / MODULE).read_text() != self._source
        failing = {*self.broken, *(self.fail if mutated else ())}
        return [f"{file}::test_one" for file in files if file in failing]


@pytest.fixture
def copy(tmp_path):
    (tmp_path / MODULE).parent.mkdir()
    (tmp_path / MODULE).write_text((campaign.ROOT / MODULE).read_text())
    return tmp_path


@pytest.fixture
def mutant():
    return mutants((campaign.ROOT / MODULE).read_text())[0]


@pytest.mark.parametrize(
    ("fail", "unsound", "expected"),
    [
        (["tests/a.py"], [], "tests/a.py::test_one"),
        (["tests/b.py"], [], "tests/b.py::test_one"),
        ([], [], ""),
        ([], ["tests/a.py"], ""),
        (["tests/b.py"], ["tests/a.py"], "tests/b.py::test_one"),
    ],
)
def test_killer_fails_with_the_mutant_alone(copy, mutant, fail, unsound, expected):
    assert Played(copy, fail, unsound).killer(MODULE, mutant, ["tests/a.py", "tests/b.py"]) == expected
    assert (copy / MODULE).read_text() == (campaign.ROOT / MODULE).read_text()


def test_others_run_once_for_all_that_are_left(copy):
    several = mutants((campaign.ROOT / MODULE).read_text())[:2]
    left = {f"m{number}": (MODULE, mutant) for number, mutant in enumerate(several)}
    others = {"m0": ["tests/a.py"], "m1": ["tests/b.py"]}
    found = dict(Played(copy, ["tests/b.py"]).killers(left, others))
    assert found == {"m0": "", "m1": "tests/b.py::test_one"}
    assert (copy / MODULE).read_text() == (campaign.ROOT / MODULE).read_text()


def test_same_seed_draws_the_same_mutants():
    drawn = campaign.drawn(here(), 5, 1)
    assert drawn == campaign.drawn(here(), 5, 1)
    assert drawn != campaign.drawn(here(), 5, 2)


def test_own_tests_of_a_module_run_first():
    mutant = mutants((campaign.ROOT / MODULE).read_text())[0]
    own, affected, other = "tests/processor/test_clock.py", "tests/serving/test_server.py", "tests/models/test_bench.py"
    structure = "tests/test_layers.py"
    tree = SimpleNamespace(tests=[other, own, affected, structure], affected=lambda changed: {own, affected, structure})
    assert campaign.divided(tree, MODULE, mutant) == ([own], [affected], [other])
