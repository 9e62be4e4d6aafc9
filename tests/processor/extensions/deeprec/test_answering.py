"""Requests as bytes are answered by the extension, and refused by name without it."""

import pytest

from freshet_serving.processor.engine import Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.features.limits import RequestLimits


def test_bytes_are_refused_by_name_without_the_extension(without_extensions, tmp_path):
    without_extensions("deeprec")
    with (
        Processor(ProcessorConfig(str(tmp_path), sessions=1)) as processor,
        pytest.raises(BadInput, match=r"^a request as bytes needs the extension 'deeprec'"),
    ):
        processor.process(b"")


def test_bytes_beyond_the_limit_are_refused(tmp_path):
    config = ProcessorConfig(str(tmp_path), sessions=1, limits=RequestLimits(max_body_bytes=1024))
    with Processor(config) as processor, pytest.raises(TooLarge, match="max_body_bytes: expected at most 1024 bytes"):
        processor.process(bytes(1025), "small")
