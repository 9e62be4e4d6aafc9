from loadtest.bench.foreign_models.catalogue import ForeignEntry
from loadtest.bench.foreign_models.models_page import page

LISTED = [ForeignEntry(name, f"about {name}", "bags", "Bags") for name in ("one", "two", "three", "four")]
FINE = {"abs": 1e-7, "rel": 2e-6, "samples": True, "processor_s": 4.25, "message": "", "stage": ""}
COPIED = [
    {"table": "item", "verdict": "follows", "uses": []},
    {"table": "user", "verdict": "half served", "uses": ["history"]},
]


def test_misses_and_tables_are_counted():
    results = {
        "one": FINE | {"status": "whole", "tables": 3, "row_copy": COPIED},
        "two": FINE | {"status": "with a stage", "tables": 1, "row_copy": COPIED[:1], "stage": "whole"},
        "three": {"status": "refused", "message": "operator a|b"},
    }
    origin = {"date": "2026-01-01", "command": "make -C loadtest models"}
    text = page(LISTED, 3, {"machine": {"cores": 2, "cpu": "x"}, "origin": origin, "results": results})
    assert "**2 of 4 served** (aim: 3); their tables: 2 follow" in text
    assert "| Bags | 4 | 1 | 1 | 2 | 4 | 2 | 0 | 0 | 1 |" in text
    assert "| one | whole | 1e-07 / 2e-06 | 3 | 1 of 2 | 4.2 S | about one; user: half served (history) |" in text
    assert "about two; the whole model is the stage |" in text
    assert "| three | refused |  |  |  |  | about three; operator a/b |" in text
    assert "| four | not tried |" in text
