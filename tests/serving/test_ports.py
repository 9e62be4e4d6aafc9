"""Extensions of the server are those of its folder."""

from pathlib import Path

import freshet_serving.serving
from freshet_serving.serving.ports import SERVER, ServerExtension
from tests.support.extensions import without_extensions

__all__ = ["without_extensions"]


def test_every_folder_is_an_extension():
    folder = Path(freshet_serving.serving.__file__).parent / "extensions"
    assert set(SERVER.all()) == {path.parent.name for path in folder.glob("*/__init__.py")}
    assert all(isinstance(one, ServerExtension) for one in SERVER.all().values())


def test_part_that_only_one_can_offer_is_found_or_none(without_extensions):
    assert callable(SERVER.only("importer"))
    without_extensions("auto_import")
    assert SERVER.only("importer") is None
