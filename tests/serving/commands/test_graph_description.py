from dataclasses import replace

import pytest

from freshet_serving.processor.package import FLOPS, USER_STATE, Feature, Input, Manifest, Output, TableEntry, divided
from freshet_serving.processor.package.sequences import SequenceColumn, SequenceEntry
from freshet_serving.processor.package.subgraphs import GraphInput
from freshet_serving.serving.commands.graph_description import subgraph_lines, work_lines

LENGTH = 100
COUNTS = {
    "score": 2_000, "user": 500_000, "whole": 502_000, "score-length50": 2_000, "user-length50": 200_000
}  # fmt: skip


@pytest.fixture
def manifest():
    """A model over a history, divided by its user, with subgraphs for 50 events and for 100."""
    column = SequenceColumn("history.item", "ids", "history.item", "item", 0, 5 * LENGTH)
    draft = Manifest(
        "m",
        1,
        "sasrec",
        0.0,
        [Input("user", "int64"), Input("item", "int64"), Input("history.item", "int64", ragged=True)],
        [
            Feature("user", "id", "user", side="user", table="user", width=4),
            *(
                Feature(f"item{n}", "id", "item", side="item", table="item", offset=4 + 4 * n, width=4)
                for n in range(8)
            ),
        ],
        [TableEntry("user", 4, 0), TableEntry("item", 4, 0)],
        [Output("score", 1)],
        36,
        {},
        {},
        sequences=[SequenceEntry("history", [column], LENGTH, 5 * LENGTH, ["history.item"])],
    )
    more = [GraphInput("history", ["rows", 5 * LENGTH], "sequence")]
    graphs = divided(draft, [("u0", 32)], more, {50: [("u0", 32)]})
    return replace(draft, graphs=graphs, notes={FLOPS: COUNTS})


def test_lines_of_subgraphs_name_symbols_types_and_sources(manifest):
    score, user, whole, _, shorter = subgraph_lines(manifest)
    assert score == (
        "score: x [rows, 32] float32 of item0, item1, item2, item3, item4, item5 and 2 more; "
        "u0 [requests, 32] float32 from user -> score [rows, 1] float32"
    )
    assert user == (
        "user: x [requests, 4] float32 of user; history [requests, 500] float32 from sequence "
        "-> u0 [requests, 32] float32"
    )
    assert "history [rows, 500] float32 from sequence" in whole
    assert "history [requests, 250] float32 from sequence" in shorter


def test_work_is_shown_per_candidate_request_and_event(manifest):
    assert work_lines(manifest) == [
        "score: 2,000 FLOPs a candidate",
        "user: 500,000 FLOPs a request, 5,000 an event of 100",
        "whole: 502,000 FLOPs a candidate",
        "score-length50: 2,000 FLOPs a candidate",
        "user-length50: 200,000 FLOPs a request, 4,000 an event of 50",
        "a request of n candidates: 500,000 + 2,000 n FLOPs; the user's part is 100% of 1, 71% of 100, 49% of 256, "
        "20% of 1,000",
        "a request of n candidates with at most 50 events: 200,000 + 2,000 n FLOPs; the user's part is 99% of 1, "
        "50% of 100, 28% of 256, 9% of 1,000",
    ]


def test_undivided_graph_has_no_share(manifest):
    undivided = replace(manifest, graphs={}, sequences=[], notes={FLOPS: {"score": 7}})
    assert work_lines(undivided) == ["score: 7 FLOPs a candidate"]


@pytest.mark.parametrize("notes", [{}, {FLOPS: None}, {FLOPS: {"score": "many"}}, {FLOPS: [1]}])
def test_missing_or_foreign_counts_are_left_out(manifest, notes):
    assert work_lines(replace(manifest, notes=notes)) == []


@pytest.mark.parametrize(("candidate", "said"), [(2_000, "49% of"), (20_000, "9% of")])
def test_class_of_a_users_state_is_shown_with_what_a_hit_saves(manifest, candidate, said):
    note = {"class": "causal", "append": "none", "why": "u0 mixes events"}
    notes = {FLOPS: COUNTS | {"score": candidate}, USER_STATE: note}
    line = work_lines(replace(manifest, notes=notes))[-1]
    assert line.startswith(f"user state: causal, append none (u0 mixes events); a hit saves at most {said}")
    assert ("which is little" in line) == (candidate == 20_000)
    numbers = sum(output.dims[1] for output in manifest.graphs["user"].outputs)
    assert line.endswith(f"its numbers take {4 * numbers:,} bytes, as float16 about half")


@pytest.mark.parametrize("note", [None, 3, {}, {"class": "whole", "append": 1, "why": ""}])
def test_note_on_a_users_state_that_is_none_is_left_out(manifest, note):
    assert not [
        line for line in work_lines(replace(manifest, notes={FLOPS: COUNTS, USER_STATE: note})) if "state" in line
    ]
