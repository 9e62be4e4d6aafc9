"""A table shared out over processes and gathered again: the bytes of one that was never shared."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.embedding.admission import AdmitAll, CountingBloom, ExactCounts
from freshet_serving.models.embedding.id_shards import of_process, processes_of
from freshet_serving.models.embedding.optimizer import row_optimizer
from freshet_serving.models.embedding.variable import EmbeddingVariable
from freshet_serving.models.parallel.commands import HANDLERS, PARTS
from freshet_serving.models.parallel.gathered_table import GatheredTable
from freshet_serving.processor.errors import Corrupt

FILTERS = {
    "always": lambda shards: AdmitAll(),
    "counts": lambda shards: ExactCounts(2),
    "bloom": lambda shards: CountingBloom(2, 40, 0.01, shards),
}


class Shares:
    """All ranks of a table, asked one after another."""

    def __init__(self, processes, admission):
        self.processes = processes
        self.trainers = []
        for n in range(processes):
            own = {"t": make_table(FILTERS[admission](of_process(n, processes)))}
            self.trainers.append(type("Rank", (), {"own": own})())

    def call_all(self, operation, number=0, given=None):
        each = given or [[]] * self.processes
        return [HANDLERS[operation](trainer, number, list(arrays)) for trainer, arrays in zip(self.trainers, each)]

    def insert(self, ids):
        owners = processes_of(ids, self.processes)
        for n, trainer in enumerate(self.trainers):
            trainer.own["t"].insert(ids[owners == n])


def make_table(admission):
    return EmbeddingVariable("t", 3, row_optimizer("adagrad"), seed=5, admission=admission)


def gathered(shares):
    return GatheredTable(shares, 0, shares.trainers[0].own["t"])


def same(one, other):
    for part in PARTS:
        assert getattr(one, part).tobytes() == getattr(other, part).tobytes(), part


def same_filter(one, other):
    assert {name: a.tobytes() for name, a in one.items()} == {name: a.tobytes() for name, a in other.items()}


@pytest.mark.parametrize("admission", FILTERS)
@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.integers(-50, 50), max_size=30), max_size=4), st.integers(1, 4), st.data())
def test_gathered_table_equals_one_of_a_single_process(admission, batches, processes, data):
    shares, one = Shares(processes, admission), make_table(FILTERS[admission](range(1024)))
    whole = gathered(shares)
    for batch in batches:
        ids = np.array(batch, np.int64)
        one.insert(ids)
        shares.insert(ids)
        gone = np.array(data.draw(st.lists(st.integers(-50, 50), max_size=5)), np.int64)
        one.remove(gone)
        for trainer in shares.trainers:
            trainer.own["t"].remove(gone)
        same(whole.changes(), one.changes())
        same(whole.export(), one.export())
        same_filter(whole.admission.changes(), one.admission.changes())
        same_filter(whole.admission.export(), one.admission.export())
        assert len(whole) == len(one)
        if data.draw(st.booleans()):
            whole.clear_changed()
            one.clear_changed()


@pytest.mark.parametrize("admission", FILTERS)
@pytest.mark.parametrize(("before", "after"), [(1, 3), (4, 2), (3, 1)])
def test_saved_tables_are_restored_by_a_different_process_count(admission, before, after):
    first, second = Shares(before, admission), Shares(after, admission)
    first.insert(np.concatenate([np.arange(40), np.arange(20, 60)]))
    old, new = gathered(first), gathered(second)
    new.restore(old.export())
    new.admission.restore(old.admission.export())
    same(new.export(), old.export())
    same_filter(new.admission.export(), old.admission.export())
    old.clear_changed()
    first.insert(np.arange(55, 90))
    new.restore(old.changes())
    new.admission.restore(old.admission.changes())
    same(new.export(), old.export())
    same_filter(new.admission.export(), old.admission.export())
    new.mark(old.changes())
    assert np.array_equal(new.changes().keys, old.changes().keys)


def test_foreign_rows_reach_the_owner_of_their_ids():
    shares, one = Shares(3, "always"), make_table(AdmitAll())
    ids = np.arange(30)
    for table in (one, gathered(shares)):
        if table is not one:
            shares.insert(ids)
        else:
            one.insert(ids)
        table.overwrite(np.arange(20, 40), np.ones((20, 3), np.float32), np.arange(5), 0.1, 7)
    same(gathered(shares).export(), one.export())
    same(gathered(shares).changes(), one.changes())
    pieces = list(gathered(shares).pieces(8))
    assert np.array_equal(np.concatenate([piece.keys for piece in pieces]), one.export().keys)
    assert gathered(shares).slots_nbytes == 12


def test_ids_owned_by_another_process_are_refused():
    shares = Shares(2, "always")
    shares.trainers[0].own["t"].insert(np.arange(20))
    with pytest.raises(Corrupt, match="another process"):
        gathered(shares).export()
