import pytest

from freshet_serving.processor.extensions.redis.slots import SLOTS, nodes_by_slot, parse_slots


def test_ranges_name_the_master_of_their_slots():
    reply = [[0, 99, [b"10.0.0.1", 7000, b"id"], [b"10.0.0.9", 7001, b"replica"]], [100, SLOTS - 1, [b"", 7002]]]
    assert parse_slots(reply, "seed") == [(0, 99, "10.0.0.1", 7000), (100, SLOTS - 1, "seed", 7002)]


@pytest.mark.parametrize(
    "reply",
    [
        None,
        b"OK",
        7,
        [[]],
        [[0, 1]],
        [[0, SLOTS, [b"h", 1]]],
        [[5, 4, [b"h", 1]]],
        [[0, 1, [b"\xff", 1]]],
        [[0, 1, [7, 1]]],
        ValueError("cluster support disabled"),
    ],
)
def test_anything_else_is_no_slot_map(reply):
    assert parse_slots(reply, "seed") is None


def test_each_slot_has_the_node_of_its_range():
    slots = nodes_by_slot([(0, 1, "a", 1), (3, 3, "b", 2)], lambda host, port: f"{host}:{port}")
    assert slots[:5] == ["a:1", "a:1", None, "b:2", None]
    assert len(slots) == SLOTS
