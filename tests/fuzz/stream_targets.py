"""What comes in by streams, and what `freshet join` reads and writes: each with a corpus of valid inputs.

A message that is no rows is left out by whoever reads the stream, with its place; here that counts as refused.
"""

from __future__ import annotations

import io
import json
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from freshet_serving.models.data.source import Field, Schema
from freshet_serving.models.streams.growing_folder import GrowingFolder
from freshet_serving.models.streams.join_state import JoinState
from freshet_serving.models.streams.join_windows import JoinWindows, newest_lines, write_lines
from freshet_serving.models.streams.joined_folder import LABEL, LATE, JoinedFolder, labelled
from freshet_serving.models.streams.late_share import LateShare
from freshet_serving.models.streams.matching import JoinCounts, OpenOutcomes
from freshet_serving.models.streams.recording_folder import RecordingFolder
from freshet_serving.models.streams.stream import Segment
from freshet_serving.models.streams.stream_journal import StreamJournal
from freshet_serving.models.streams.stream_rows import MessageRows, RejectedRows, sound_parts
from freshet_serving.processor.errors import BadInput
from tests.fuzz.target import Target
from tests.models.streams.recordings import recorded_as, recording

FIELDS = (Field("user", "id"), Field("price", "float"), Field("city", "string"), Field("tags", "ids"))
SCHEMA = Schema((*FIELDS, Field("words", "strings")), "clicked", "ts", "weight")
RECORDED = Schema((Field("freshet.request", "string"), Field("freshet.row", "id")), (), "freshet.time")
ROWS = [
    {"user": n, "price": n / 4, "city": f"c{n}", "tags": [n, 2], "words": ["a"], "clicked": 1, "ts": 1e9, "weight": 0.5}
    for n in range(3)
]
TIMED = [{**ROWS[0], "ts": "2026-11-23T10:00:00Z"}, {**ROWS[1], "ts": "17.5", "price": None}]
IDENTITY = "a folder of Parquet files"
SEPARATOR = b"\x1f"
MESSAGES = MessageRows(SCHEMA)


def arrow_message():
    out = io.BytesIO()
    table = pa.Table.from_pylist(ROWS)
    with pa.ipc.new_stream(out, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=2):
            writer.write_batch(batch)
    return out.getvalue()


def read(parts):
    """Reads all rows, as a followed source does; refused where any is not sound."""
    for rows in parts:
        made = [rows.why] if isinstance(rows, RejectedRows) else [one for _, one in sound_parts(rows, 0, len(rows))]
        if told := [one for one in made if isinstance(one, str)]:
            raise BadInput(told[0])


def message(data):
    read(MESSAGES.of_messages([("offset 1", data)]))


def entry(data):
    """Fields of one entry of Redis: names and values in turn."""
    cells = data.split(SEPARATOR)
    read(MESSAGES.of_cells([("entry 1-0", dict(zip(cells[::2], cells[1::2])))]))


def entry_of(row):
    texts = {name: "|".join(map(str, value)) if isinstance(value, list) else value for name, value in row.items()}
    return SEPARATOR.join(str(one).encode() for pair in texts.items() for one in pair)


def journal(tmp):
    path = tmp / "fuzzed.journal"

    def run(data):
        path.write_bytes(data)
        made = StreamJournal(path, IDENTITY)
        GrowingFolder(str(tmp), SCHEMA).begin(made.segments)
        RecordingFolder(str(tmp), "", RECORDED).begin(made.segments)
        list(made.since(made.rows))

    return run


def past_checksums(run):
    """Every line's checksum made to fit."""

    def checked(data):
        texts = [line[9:] for line in data.split(b"\n")]
        run(b"".join(b"%08x %s\n" % (zlib.crc32(text), text) for text in texts))

    return checked


def journal_file(tmp):
    path = tmp / "valid.journal"
    made = StreamJournal(path, IDENTITY, anew=True)
    made.append([Segment({"file": f"a/{n}.parquet", "nbytes": 9, "model": "ctr"}, n) for n in range(3)])
    return path.read_bytes()


def join_state(data):
    said = json.loads(data) if data[:1] == b"{" and is_json(data) else None
    if not isinstance(said, dict):
        raise BadInput("an object wanted, as the folder makes sure")
    state = JoinState.from_json(said)
    share, windows = LateShare(60.0, 2400.0, state.share), JoinWindows(60.0, state.windows)
    share.weights(np.array([0.1]), state.until_s)
    windows.lines(0.1, 0.0)


def is_json(data):
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def state():
    share, windows = LateShare(60.0, 2400.0), JoinWindows(60.0)
    share.add_rows(np.array([1e9]), np.array([0.5]), np.array([1.0]))
    windows.add(np.array([1e9]), rows=np.ones(1), scores=np.ones(1))
    settings = {"key": "row", "wait": 60.0, "late": 2400.0, "window": 60.0}
    outcomes, counts = OpenOutcomes(3, 99, frozenset({3, 50})), JoinCounts(rows=4, positives=1)
    return JoinState("ctr", settings, 4, outcomes, counts, share.to_json(), windows.to_json(), 1e9, None, 1)


def window_lines(tmp):
    folder = tmp / "windows"
    folder.mkdir(exist_ok=True)

    def run(data):
        path = folder / "2001-09-09.jsonl"
        path.write_bytes(data)
        found = newest_lines(folder, 12)
        write_lines(folder, found)
        for other in folder.iterdir():
            other.unlink()
        if not found:
            raise BadInput("no line of ours")

    return run


def joined_file(tmp):
    folder = tmp / "joined"
    names = ["freshet.request", "freshet.row", LABEL, LATE]

    def run(data):
        joined = JoinedFolder(folder)
        try:
            (folder / f"{1:010}.parquet").write_bytes(data)
            state = joined.state_of(1)
            JoinState.from_json(state)
            joined.columns(1, names)
            joined.recorded(1, [2, 0])
        finally:
            joined.close()

    return run


def joined_bytes():
    rows = recording([(f"r{n}", n, n, 0.25) for n in range(3)])
    table = labelled(rows, np.ones(3), np.ones(3), np.zeros(3, bool))
    told = json.dumps(state().to_json()).encode()
    return parquet(table.replace_schema_metadata({**table.schema.metadata, b"freshet.join": told}))


def recording_file(tmp):
    folder = tmp / "recordings"
    folder.mkdir(exist_ok=True)

    def run(data):
        (folder / f"{recorded_as(1)}.parquet").write_bytes(data)
        stream = RecordingFolder(str(folder), "", RECORDED)
        stream.begin([])
        found = stream.poll(0.0)
        if not found:
            raise BadInput("not whole yet")
        for segment in found:
            read(stream.read(segment))
            if not segment.rows:
                raise BadInput("nothing recorded")
            wanted = [0, segment.rows - 1] if segment.rows > 1 else [0]
            stream.recorded(SimpleNamespace(since=lambda row, one=segment: iter([(0, one)])), wanted)

    return run


def parquet(table):
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def stream_targets(tmp: Path) -> tuple[Target, ...]:
    """All of them. tmp: a folder for files."""
    lines = tmp / "lines"
    write_lines(lines, JoinWindows(60.0, state().windows).lines(0.1, 0.0))
    (window,) = (path.read_bytes() for path in lines.iterdir())
    known, held = journal_file(tmp), json.dumps(state().to_json()).encode()
    recorded = parquet(recording([(f"r{n}", n, n, 0.25) for n in range(3)]))
    objects = tuple(json.dumps(one).encode() for one in (ROWS[0], ROWS, TIMED, {**ROWS[0], "tags": None}))
    entries = (entry_of(ROWS[0]), entry_of(ROWS[1]), b"json" + SEPARATOR + objects[1])
    return (
        Target("stream: JSON message", message, objects, 3),
        Target("stream: Arrow message", message, (arrow_message(),), 2),
        Target("stream: entry of Redis", entry, entries, 2),
        Target("file: journal of a stream", journal(tmp), (known,)),
        Target("file: journal of a stream, past its checksums", past_checksums(journal(tmp)), (known,)),
        Target("join: state", join_state, (held,), 2),
        Target("join: lines of windows", window_lines(tmp), (window,)),
        Target("join: joined rows", joined_file(tmp), (joined_bytes(),)),
        Target("join: recording", recording_file(tmp), (recorded,)),
    )
