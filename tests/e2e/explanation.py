"""An explanation as the admin port gives it, for pages that show one."""

HEAD = {"backend": "openvino", "target": "cpu", "precision": "float32", "bucket": 4}
LONG = "9007199254740993"


def side(generation, score, step, served):
    ids = [
        {"id": "jazz", "key": "-4151", "found": "row", "from": "version", "step": 0, "norm": 0.2},
        {"id": "zydeco", "key": "88123", "found": "default", "why": "no row", "norm": 0.0},
        {
            "id": "x" * 80,
            "key": "-9007199254740993",
            "found": "row",
            "from": "delta",
            "step": None,
            "before": 9,
            "norm": 0.1,
        },
    ]
    return {
        "generation": generation,
        "served": served,
        "executable": HEAD,
        "computed_by": "supervisor, beside 2 workers",
        "timings_ms": {"bind": 0.1, "look_up": 0.3, "pool": 0.02, "open": 31.0, "execute": 0.2},
        "outputs": {"score": [score]},
        "inputs": {
            "user": {
                "kind": "id", "side": "user", "input": "user", "table": "user", "dim": 16, "combiner": "sum",
                "pooled_norm": 0.31,
                "ids": [{"id": LONG, "key": LONG, "found": "row", "from": "delta", "step": step, "norm": 0.31}],
            },
            "tags": {
                "kind": "strings", "side": "item", "input": "tags", "table": "tag", "dim": 8, "combiner": "mean",
                "pooled_norm": 0.2, "length": 40, "ids": ids,
            },
            "f0": {"kind": "float", "side": "user", "input": "floats", "value": 31.0, "fed": 0.4},
        },
        "histories": {
            "history": {
                "events": 60, "left_out": 40, "max_length": 60,
                "newest": [
                    {
                        "place": place,
                        "ids": {"history.item": [{"id": f"item-{place}"}], "history.action": [{"id": "buy"}]},
                        "score_change": (-1) ** place * place / 10_000,
                    }
                    for place in range(40, 60)
                ],
            },
        },
    }  # fmt: skip


CANNED = {
    "model": "ctr",
    "row": 0,
    "rows": 3,
    "sides": [side("1.21", 0.067425, 21, True), side("1.19", 0.0601, 18, False)],
    "change": {"score": [0.007325]},
    "moved": [
        {"what": "feature user", "feature": "user", "score_change": 0.0061, "outputs": {"score": [0.0061]}},
        {"what": "dense weights", "feature": None, "score_change": -0.002, "outputs": {"score": [-0.002]}},
        {"what": "feature tags", "feature": "tags", "score_change": 0.0008, "outputs": {"score": [0.0008]}},
    ],
    "moved_left_out": 0,
}
