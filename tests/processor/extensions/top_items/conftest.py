"""Processors of repositories that a test writes, and uploads to them."""

import pytest

from freshet_serving.processor.engine import Processor, ProcessorConfig
from freshet_serving.processor.package.delta import write_delta


@pytest.fixture
def open_repository(tmp_path):
    """Opens a processor of what write(folder, *contents) has written, and closes it after the test."""
    processors = []

    def make(write, *contents, **options):
        write(tmp_path / "repository", *contents)
        config = {"sessions": 1, "undo_depth": 8} | options
        processors.append(Processor.initialize(ProcessorConfig(str(tmp_path / "repository"), **config)))
        return processors[-1]

    yield make
    for processor in processors:
        processor.close()


@pytest.fixture
def upload(tmp_path):
    def apply(processor, delta):
        write_delta(tmp_path / "upload", delta)
        processor.apply_delta(delta.model, data=(tmp_path / "upload").read_bytes())

    return apply
