"""Columns of listed items, as the state of the list has them."""

import numpy as np
import pytest

from freshet_serving.processor.engine import Processor, ProcessorConfig
from freshet_serving.processor.extensions.top_items.item_columns import MOST_VALUES, ItemColumns
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.tables.table import descriptors
from tests.support.ranked import MODEL, columns_of, manifest, ranked_delta, write_ranked

pytestmark = pytest.mark.unguarded("each delta has a matrix of its own, so all scores move")
RECORDED = range(0, 40, 2)


@pytest.fixture
def processor(tmp_path):
    write_ranked(tmp_path / "repository", recorded=RECORDED)
    with Processor.initialize(ProcessorConfig(str(tmp_path / "repository"), sessions=1)) as opened:
        yield opened


def values(processor, ids, step=None):
    version = processor.host.catalogue[MODEL].pick()
    tables = descriptors([table.descriptor() for table in version.tables.values()])
    state = version.as_of(version.generation.step if step is None else step)
    return ItemColumns.of(version.manifest).values(ids, tables, state.epoch)


def as_shown(columns):
    """Plain values as they are shown: whole numbers as texts."""
    shown = {name: list(of_items) for name, of_items in columns.items()}
    shown["stock"] = [str(n) for n in columns["stock"]]
    # A list is stored as far as the entity's capacity reaches.
    shown["sizes"] = [[str(n) for n in sizes[:4]] for sizes in columns["sizes"]]
    shown["sellers"] = [[str(n) for n in sellers] for sellers in columns["sellers"]]
    shown["category"] = [text or "" for text in columns["category"]]
    return shown


def test_columns_are_those_of_the_records(processor):
    ids = [8, 0, 38]
    assert values(processor, ids) == as_shown(columns_of(ids, 0))


def test_items_without_a_record_have_no_values(processor):
    found = values(processor, [7, 8, 9000])
    assert {name: (of_items[0], of_items[2]) for name, of_items in found.items()} == dict.fromkeys(found, (None, None))
    assert found["stock"][1] is not None
    assert values(processor, []) == {}


def test_columns_follow_the_state(processor, tmp_path):
    write_delta(tmp_path / "upload", ranked_delta(1, recorded=[8]))
    processor.apply_delta(MODEL, data=(tmp_path / "upload").read_bytes())
    assert values(processor, [8], 1) == as_shown(columns_of([8], 1))
    assert values(processor, [8], 0) == as_shown(columns_of([8], 0))


def test_versions_say_what_a_request_needs(processor):
    version = processor.host.catalogue[MODEL].pick()
    told = ItemColumns.of(version.manifest).described()
    assert (told["item"], told["inputs"]) == ("item", ["history.item"])
    assert (told["dtype"], told["sources"]) == ("int64", ["model", "like"])
    assert [column["name"] for column in told["columns"]] == ["price", "stock", "category", "tags", "sizes", "sellers"]
    assert told["columns"][3] == {"name": "tags", "dtype": "string", "ragged": True}
    plain = ItemColumns.of(manifest())
    assert plain.described()["columns"] == []
    assert plain.values([1], np.empty((0, 0), np.int64), 0) == {}
    assert ItemColumns.of(manifest(notes={})) is None
    assert MOST_VALUES > 4
