import pytest

from tests.affected import campaign
from tests.affected.campaign import KILLED, MISSED, SURVIVED, Trial
from tests.affected.changes import here
from tests.mutants.operators import mutants

MODULE = "processor/clock.py"


class Played(Trial):
    """A trial whose tests fail as they are told: with the mutant, and without it."""

    def __init__(self, copy, fail, unsound=()):
        super().__init__(copy)
        self._source = (campaign.ROOT / MODULE).read_text()
        self.fail, self.broken = fail, unsound

    def first_failed(self, files):
        mutated = (self._copy / MODULE).read_text() != self._source
        failing = {*self.broken, *(self.fail if mutated else ())}
        return next((f"{file}::test_one" for file in files if file in failing), "")


@pytest.fixture
def copy(tmp_path):
    (tmp_path / MODULE).parent.mkdir()
    (tmp_path / MODULE).write_text((campaign.ROOT / MODULE).read_text())
    return tmp_path


@pytest.mark.parametrize(
    ("fail", "unsound", "expected"),
    [
        (["tests/a.py"], [], (KILLED, "tests/a.py::test_one")),
        (["tests/b.py"], [], (MISSED, "tests/b.py::test_one")),
        ([], [], (SURVIVED, "")),
        ([], ["tests/a.py"], (SURVIVED, "")),
        (["tests/b.py"], ["tests/a.py"], (MISSED, "tests/b.py::test_one")),
    ],
)
def test_outcome_says_which_tests_kill(copy, fail, unsound, expected):
    mutant = mutants((campaign.ROOT / MODULE).read_text())[0]
    assert Played(copy, fail, unsound).outcome(MODULE, mutant, (["tests/a.py"], ["tests/b.py"])) == expected
    assert (copy / MODULE).read_text() == (campaign.ROOT / MODULE).read_text()


def test_same_seed_draws_the_same_mutants():
    drawn = campaign.drawn(here(), 5, 1)
    assert drawn == campaign.drawn(here(), 5, 1)
    assert drawn != campaign.drawn(here(), 5, 2)


def test_own_tests_of_a_module_run_first():
    mutant = mutants((campaign.ROOT / MODULE).read_text())[0]
    affected, others = campaign.divided(here(), MODULE, mutant)
    assert affected[0] == "tests/processor/test_clock.py"
    assert not set(affected) & set(others)
