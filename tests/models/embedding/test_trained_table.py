"""Both kinds of table are what whoever saves and publishes takes."""

from freshet_serving.models.embedding.trained_table import TrainedFilter, TrainedTable
from freshet_serving.models.embedding.variable import EmbeddingVariable
from freshet_serving.models.parallel.gathered_table import GatheredFilter, GatheredTable


def methods(protocol):
    return {name for name in vars(protocol) if not name.startswith("_")} | {"__len__"} & set(vars(protocol))


def test_single_and_multi_process_tables_have_all_table_methods():
    for table in (EmbeddingVariable, GatheredTable):
        missing = {name for name in methods(TrainedTable) if not hasattr(table, name)}
        # Attributes of each object.
        assert missing <= {"name", "dim", "admission"}
    assert all(hasattr(GatheredFilter, name) for name in methods(TrainedFilter))
