"""What an extension offers answers in place of the batcher; without it, who asks for it is refused by name."""

import numpy as np
import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.ports import ENGINE, Extension
from freshet_serving.processor.sessions.answerer import Answerer
from freshet_serving.processor.sessions.request import PredictReply
from tests.processor.engines import request


class Counting(Answerer):
    """Answers with the numbers from 0."""

    closed = False

    def read_as(self, replica):
        return replica.manifest

    def check(self, request, replica):
        if request.top_items == 13:
            raise BadInput("top_items: expected another number, got 13")

    def submit(self, request, replica, deadline_s, limits, done):
        numbers = {"numbers": np.arange(request.top_items)}
        done(PredictReply(numbers, replica.generation, request.model))

    def close(self):
        self.closed = True


@pytest.fixture
def processor(open_processor, monkeypatch):
    extension = Extension(answerers={"top_items": lambda groups, clock: Counting()})
    monkeypatch.setattr(ENGINE, "_known", {"toy": extension})
    return open_processor()


def test_answerer_answers_requests_with_its_attribute(processor):
    assert processor.process(request([1], top_items=3)).outputs["numbers"].tolist() == [0, 1, 2]
    assert processor.process(request([1])).outputs.keys() == {"score"}


def test_answerer_checks_a_request_first(processor):
    with pytest.raises(BadInput, match="top_items: expected another number"):
        processor.process(request([1], top_items=13))


def test_answerer_is_closed_with_its_predictor(processor):
    (answerer,) = processor.predictor.answerers.values()
    processor.close()
    assert answerer.closed


def test_request_without_its_answerer_is_refused(open_processor, monkeypatch):
    monkeypatch.setattr(ENGINE, "_known", {})
    processor = open_processor()
    with pytest.raises(BadInput, match="top_items needs the extension 'top_items'"):
        processor.process(request([1], top_items=3))
    with pytest.raises(BadInput, match="x-top-items needs the extension"):
        processor.predictor.answerer("top_items", "x-top-items")
