"""Every slot is a sample of the metric family that it names."""

from freshet_serving.processor.counter_block import Slot
from freshet_serving.serving.telemetry.metrics import counter_families

READS = Slot("toy", "reads", "toy_reads", "Reads.")
CACHE = Slot("toy", "cache", "toy_bytes", "Memory.", gauge=True)
LATE, DOWN = Slot("toy", "losses", "toy_losses", "Lost keys.", "reason").each(["late", "down"])
HIDDEN = Slot("toy", "hidden")


def test_slots_become_samples_with_the_labels_of_their_owner():
    counted = [({"model": "a"}, {READS: 3, LATE: 1, DOWN: 2, CACHE: 7, HIDDEN: 9}), ({"model": "b"}, {READS: 4})]
    families = {family.name: family for family in counter_families(counted)}
    assert [(f.name, f.type, f.documentation) for f in families.values()] == [
        ("freshet_toy_reads", "counter", "Reads."),
        ("freshet_toy_losses", "counter", "Lost keys."),
        ("freshet_toy_bytes", "gauge", "Memory."),
    ]
    samples = {(s.name, *s.labels.values()): s.value for family in families.values() for s in family.samples}
    assert samples == {
        ("freshet_toy_reads_total", "a"): 3,
        ("freshet_toy_reads_total", "b"): 4,
        ("freshet_toy_losses_total", "a", "late"): 1,
        ("freshet_toy_losses_total", "a", "down"): 2,
        ("freshet_toy_bytes", "a"): 7,
    }


def test_counters_of_a_process_have_no_labels():
    (family,) = counter_families([({}, {READS: 3})])
    assert [(s.name, s.labels, s.value) for s in family.samples] == [("freshet_toy_reads_total", {}, 3)]


def test_nothing_counted_is_no_family():
    assert list(counter_families([({"model": "a"}, {})])) == []
