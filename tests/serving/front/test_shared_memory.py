"""Shared memory is served by an extension, and the option is refused by name without it."""

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.extensions.shared_memory.regions import SystemRegions
from freshet_serving.serving.front.shared_memory import region_opener
from freshet_serving.serving.serve_config import ServeConfig


def test_regions_are_those_of_the_extension():
    assert isinstance(region_opener()(1 << 20), SystemRegions)


def test_option_is_refused_by_name_without_the_extension(without_extensions):
    without_extensions("shared_memory")
    assert ServeConfig("repository", shared_memory="off").shared_memory == "off"
    with pytest.raises(BadInput, match=r"^shared_memory needs the extension 'shared_memory'"):
        ServeConfig("repository", shared_memory="on")
