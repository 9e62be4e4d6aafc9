from loadtest.live.delta_files import generation_of, pending, publish
from tests.loadtest.live.deltas import write_deltas


def test_pending_deltas_are_listed_by_ascending_step(tmp_path):
    deltas = write_deltas(tmp_path)
    for name in ("notes.txt", ".7.safetensors", "x.safetensors"):
        (tmp_path / name).write_bytes(b"")
    assert [step for step, _ in pending(tmp_path, 2)] == [3, 4, 5, 6]
    assert generation_of(deltas[4]) == "3.5"


def test_published_delta_appears_complete_and_alone(tmp_path):
    publish(b"delta", tmp_path, 4)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"4.safetensors": b"delta"}
