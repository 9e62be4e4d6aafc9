"""Settings combine, or one line names the key that does not fit, before anything is read to train on."""

import re

import pytest

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.processor.errors import BadInput
from tests.models.config.combinations import (
    INEXACT,
    PAIRS,
    REFUSED,
    REFUSED_LATER,
    REPAIRED,
    TRIPLES,
    pairs_of,
    settings_together,
    training_job,
    write_tables,
)

ONE_LINE = re.compile(r"[a-z_]+(\.[\w-]+)*: [^\n]{20,300}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    write_tables(folder)
    return folder


def refusal(names, folder):
    """Return the line that a combination is refused with; "" if it is not."""
    try:
        parse_config(training_job(names, folder, folder / "repository").raw)
    except BadInput as error:
        return str(error)
    return ""


def test_pair_is_accepted_or_refused_by_name(folder):
    for pair in PAIRS:
        line, key = refusal(pair, folder), REFUSED.get(pair, "")
        assert bool(line) == bool(key), (pair, line)
        if key:
            assert ONE_LINE.fullmatch(line), (pair, line)
            assert line.startswith(f"{key}: "), (pair, line)


def test_triple_is_refused_where_one_of_its_pairs_is(folder):
    for triple in TRIPLES:
        line = refusal(triple, folder)
        unfit = [pair for pair in pairs_of(triple) & REFUSED.keys() if REPAIRED.get(pair) not in triple]
        assert bool(line) == bool(unfit), (triple, line)
        assert not line or ONE_LINE.fullmatch(line), (triple, line)


def test_sets_that_are_trained_have_every_pair_that_trains():
    trained = set().union(*map(pairs_of, [*settings_together(), *settings_together(INEXACT)]))
    assert trained == set(PAIRS) - REFUSED.keys() - REFUSED_LATER.keys()
