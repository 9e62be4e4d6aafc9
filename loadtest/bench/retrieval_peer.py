"""One vector index of `make -C loadtest retrieval-peers`, and the data that all sides search.

Run with an interpreter that has numpy and usearch, qdrant-edge-py or faiss-cpu. Arguments: the index, rows, rounds; or
"faiss", rows and a file with another side's lists, which are compared with those of IndexFlatIP. Prints one JSON
object. All sides make the same data from the same seeds, in the same order.

Each index is searched with the smallest breadth of search that finds MARK of the best items, or with the largest one.
Times are processor seconds of the whole process, so it does not matter how many threads an index starts.
"""

# mypy: ignore-errors

import json
import shutil
import sys
import tempfile
import time

import numpy as np

DIM, ITEMS, QUERIES = 50, 100, 40
CLUSTERS, SPREAD = 2000, 0.7
STOCK = 1000
"""An item's column `stock` is a number below this one, evenly spread: below 10 lies 1 % of the items."""
SHARES = (1.0, 0.5, 0.1, 0.01)
CHANGED = 0.1
MARK = 0.95
TIE = 1e-6
"""Scores whose difference is at most such a share of them are ties."""
BREADTHS = (32, 64, 128, 256, 512, 1024)


def items_of(rows, seed=1):
    """Return vectors of items, float32 [rows, DIM], in clusters, as learned ones are: far easier than random ones."""
    random = np.random.default_rng(seed)
    centers = random.standard_normal((CLUSTERS, DIM)).astype(np.float32)
    near = centers[random.integers(0, CLUSTERS, rows)]
    return near + SPREAD * random.standard_normal((rows, DIM)).astype(np.float32)


def stock_of(rows):
    return np.random.default_rng(2).integers(0, STOCK, rows)


def queries_of(count=QUERIES):
    return items_of(count, seed=1) + np.random.default_rng(3).standard_normal((count, DIM)).astype(np.float32)


def changes_of(rows, round_):
    """Return numbers of the items that change in a round, and their new vectors."""
    random = np.random.default_rng([4, round_])
    changed = random.choice(rows, int(rows * CHANGED), replace=False)
    return changed, items_of(len(changed), seed=[5, round_])


def best_of(vectors, query, allowed):
    """Return the numbers of the best items among those that are allowed."""
    scores = np.where(allowed, vectors @ query, -np.inf)
    most = min(ITEMS, int(allowed.sum()))
    return np.argpartition(scores, -most)[-most:]


class Usearch:
    """HNSW of usearch; it has no filters, so more items are fetched, and those that are not allowed left out."""

    def __init__(self, vectors, stock):
        from usearch.index import Index

        self.stock = stock
        self.index = Index(ndim=DIM, metric="ip", dtype="f32", connectivity=32, expansion_add=128)
        self.index.add(np.arange(len(vectors)), vectors)

    def search(self, query, below, breadth):
        most = ITEMS
        while True:
            self.index.expansion_search = max(breadth, most)
            keys = self.index.search(query, most).keys
            allowed = keys[self.stock[keys] < below][:ITEMS]
            if len(allowed) == ITEMS or most >= min(len(self.stock), 64 * ITEMS):
                return allowed
            most *= 2

    def change(self, changed, vectors):
        self.index.remove(changed)
        self.index.add(changed, vectors)

    def close(self):
        pass


class UsearchExact:
    """usearch's exact search, over a copy of the vectors of the items that are allowed, made for each query."""

    def __init__(self, vectors, stock):
        self.vectors, self.stock = vectors.copy(), stock

    def search(self, query, below, breadth):
        from usearch.index import MetricKind, search

        if below == STOCK:
            return search(self.vectors, query, ITEMS, MetricKind.IP, exact=True).keys.astype(np.int64)
        allowed = np.flatnonzero(self.stock < below)
        return allowed[search(self.vectors[allowed], query, ITEMS, MetricKind.IP, exact=True).keys.astype(np.int64)]

    def change(self, changed, vectors):
        self.vectors[changed] = vectors

    def close(self):
        pass


class Qdrant:
    """HNSW of qdrant-edge over float32 in memory, with an index of the column that filters read."""

    def __init__(self, vectors, stock):
        import qdrant_edge as q

        self.q, self.stock = q, stock
        self.folder = tempfile.mkdtemp()
        hnsw = q.HnswIndexConfig(m=32, ef_construct=128, full_scan_threshold=10_000)
        params = q.EdgeVectorParams(size=DIM, distance=q.Distance.Dot, hnsw_config=hnsw, memory=q.Memory.Pinned)
        self.shard = q.EdgeShard.create(self.folder, q.EdgeConfig(vectors={"v": params}, wal_enabled=False))
        self.shard.update(q.UpdateOperation.create_field_index("stock", q.PayloadSchemaType.Integer))
        self.change(np.arange(len(vectors)), vectors)

    def change(self, changed, vectors):
        q = self.q
        for first in range(0, len(changed), 10_000):
            some = slice(first, first + 10_000)
            points = [
                q.Point(int(i), {"v": v.tolist()}, {"stock": int(self.stock[i])})
                for i, v in zip(changed[some], vectors[some])
            ]
            self.shard.update(q.UpdateOperation.upsert_points(points))
        self.shard.optimize()

    def search(self, query, below, breadth):
        q = self.q
        condition = (
            q.Filter(must=[q.FieldCondition(key="stock", range=q.RangeFloat(lt=below))]) if below < STOCK else None
        )
        request = q.SearchRequest(
            query=q.Query.Nearest(query.tolist(), using="v"), limit=ITEMS, filter=condition,
            params=q.SearchParams(hnsw_ef=breadth),
        )  # fmt: skip
        return np.array([point.id for point in self.shard.search(request)], np.int64)

    def close(self):
        self.shard.close()
        shutil.rmtree(self.folder)


INDEXES = {"usearch": Usearch, "usearch, exact": UsearchExact, "qdrant-edge": Qdrant}


def searched(index, vectors, stock, share, breadth, queries):
    """Return the processor seconds of a query, and the share of the best items that is found."""
    below, recalls, seconds = STOCK * share, [], 0.0
    for query in queries:
        began = time.process_time()
        keys = index.search(query, below, breadth)
        seconds += time.process_time() - began
        best = best_of(vectors, query, stock < below)
        recalls.append(len(np.intersect1d(keys, best)) / len(best))
    return seconds / len(queries), float(np.mean(recalls))


def resident_bytes():
    """Return the memory of this process that is not a file's, and that of files kept in memory."""
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["VmRSS"].split()[0]) * 1024


def measure(name, rows, rounds):
    """Return the figures of one index."""
    vectors, stock, queries = items_of(rows), stock_of(rows), queries_of()
    warm = INDEXES[name](vectors[: 4 * ITEMS], stock[: 4 * ITEMS])
    searched(warm, vectors[: 4 * ITEMS], stock[: 4 * ITEMS], 0.5, BREADTHS[0], queries[:2])
    warm.close()
    before, began = resident_bytes(), time.process_time()
    index = INDEXES[name](vectors, stock)
    answer = {"build_s": time.process_time() - began, "shares": {}, "changing": []}
    answer["memory"] = (resident_bytes() - before) / vectors.nbytes
    for share in SHARES:
        for breadth in BREADTHS:
            query_s, recall = searched(index, vectors, stock, share, breadth, queries)
            answer["shares"][str(share)] = {"breadth": breadth, "query_s": query_s, "recall": recall}
            if recall >= MARK:
                break
    breadth = answer["shares"][str(SHARES[0])]["breadth"]
    for round_ in range(rounds):
        changed, new = changes_of(rows, round_)
        began = time.process_time()
        index.change(changed, new)
        change_s = time.process_time() - began
        vectors[changed] = new
        query_s, recall = searched(index, vectors, stock, 1.0, breadth, queries)
        answer["changing"].append({"change_s": change_s, "query_s": query_s, "recall": recall})
    index.close()
    return answer


def compare_with_faiss(rows, file):
    """Return how many lists are those of IndexFlatIP, to the item and up to ties."""
    import faiss

    vectors, stock, queries = items_of(rows), stock_of(rows), queries_of()
    answer, at = {"lists": 0, "equal": 0, "equal_up_to_ties": 0, "worst": 0.0}, 0
    with np.load(file) as lists:
        rounds, limits, numbers, found = (lists[name] for name in ("rounds", "limits", "queries", "keys"))
    for round_ in np.unique(rounds):
        while at < round_:
            changed, new = changes_of(rows, at)
            vectors[changed] = new
            at += 1
        for below in np.unique(limits):
            allowed = np.flatnonzero(stock < below)
            index = faiss.IndexFlatIP(DIM)
            index.add(vectors[allowed])
            for n in np.flatnonzero((rounds == round_) & (limits == below)):
                query = queries[numbers[n]]
                _, near = index.search(query[None], min(ITEMS, len(allowed)))
                theirs, mine = allowed[near[0]], found[n][found[n] >= 0]
                other = [vectors[np.setdiff1d(*both)].astype(np.float64) @ query for both in
                         ((mine, theirs), (theirs, mine))]  # fmt: skip
                last = (vectors[theirs].astype(np.float64) @ query).min()
                away = max((float(np.abs(scores / last - 1).max()) for scores in other if len(scores)), default=0.0)
                good = len(np.unique(mine)) == len(mine) == len(theirs) and np.isin(mine, allowed).all()
                answer["lists"] += 1
                answer["equal"] += bool(good and set(mine.tolist()) == set(theirs.tolist()))
                answer["equal_up_to_ties"] += bool(good and away <= TIE)
                answer["worst"] = max(answer["worst"], away)
    return answer


if __name__ == "__main__":
    if sys.argv[1] == "faiss":
        print(json.dumps(compare_with_faiss(int(sys.argv[2]), sys.argv[3])))
    else:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
