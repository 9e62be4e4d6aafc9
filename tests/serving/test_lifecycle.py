"""A lifecycle, and the part of it that data ports are given."""

from types import SimpleNamespace

import pytest

from freshet_serving.processor.errors import NotReady
from freshet_serving.serving.lifecycle import Lifecycle


class Host:
    """A host with a predictor; the rest as a ModelHost has it."""

    def __init__(self):
        self.predictor, self.ready, self.stale, self.missing, self.concerns = SimpleNamespace(), True, "", "", ()


@pytest.fixture
def lifecycle():
    return Lifecycle()


@pytest.fixture
def part(lifecycle):
    return lifecycle.part(lambda host: host.predictor)


def test_part_is_ready_once_the_whole_is_open(lifecycle, part):
    with pytest.raises(NotReady, match="models are loading"):
        part.processor()
    assert (part.ready, part.draining) == (False, False)
    host = Host()
    lifecycle.open(host)
    assert part.processor() is host.predictor
    assert part.ready


def test_part_shares_readiness_and_its_reason(lifecycle, part):
    host = Host()
    lifecycle.open(host)
    host.ready, host.stale, host.concerns = False, "model 'ctr': too old", ("model 'ctr' version 3: waiting",)
    assert (part.ready, part.unready_reason) == (False, "model 'ctr': too old")
    assert part.reasons == {"reasons": ["model 'ctr' version 3: waiting"]}


def test_reason_names_what_is_missing_unless_something_else_is_wrong(lifecycle, part):
    assert part.unready_reason == "server: models are loading"
    host = Host()
    lifecycle.open(host)
    host.ready, host.missing = False, "the repository has no model"
    assert part.unready_reason == "server: the repository has no model"
    lifecycle.block_readiness("server: worker 1 does not answer")
    assert part.unready_reason == "server: worker 1 does not answer"
    lifecycle.block_readiness("")
    host.missing = ""
    assert part.unready_reason == "server: not every process is up"


def test_part_drains_with_the_whole_and_answers_until_closed(lifecycle, part):
    host = Host()
    lifecycle.open(host)
    answering = part.processor()
    lifecycle.drain()
    assert (part.draining, part.ready, part.unready_reason) == (True, False, "server: draining")
    assert lifecycle.close() is host
    assert part.processor() is answering
