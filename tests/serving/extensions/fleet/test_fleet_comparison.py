"""Who is behind, DIVERGED, absent: of whatever replicas say."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.extensions.fleet.fleet_comparison import (
    ReplicaStatus,
    ReplicaVersion,
    compare,
    read_report,
)

CHAIN = {"state": "CURRENT", "reason": "", "digest": "d7", "records": 7, "next_step": 8, "behind": 0}


def served(step=7, digest=None, staleness_s=0.03, **chain):
    return {
        "generation": f"3.{step}",
        "digest": digest or f"d{step}",
        "staleness_s": staleness_s,
        "chain": CHAIN | {"records": step} | chain,
    }


def said(where, *, ready=True, model="ctr", version=3, **changes):
    document = {"ready": ready, "models": {model: {"served": {str(version): served(**changes)}}}}
    return read_report(where, document)


def wrong(report):
    return {line.where: line.wrong for line in report.lines if line.wrong}


def test_replicas_at_one_digest_are_healthy():
    report = compare([said("a"), said("b"), said("c")])
    assert report.healthy
    assert [(line.where, line.behind, line.wrong) for line in report.lines] == [
        ("a", 0, ""),
        ("b", 0, ""),
        ("c", 0, ""),
    ]


def test_replica_with_an_older_generation_is_behind_by_its_records():
    report = compare([said("a", step=7), said("b", step=4), said("c", step=7)])
    assert not report.healthy
    assert [(line.behind, line.wrong) for line in report.lines] == [(0, ""), (3, "BEHIND"), (0, "")]
    assert report.problems == ("b: behind at ctr 3.4, the newest is 3.7",)


def test_labelled_version_missing_on_a_replica_is_reported():
    def of(where, *versions, **labels):
        served_there = {str(version): served() for version in versions}
        return read_report(where, {"ready": True, "models": {"ctr": {"served": served_there, "labels": labels}}})

    report = compare([of("a", 1, 2, stable=1), of("b", 2)])
    assert report.problems == ("b: does not serve version 1 of ctr",)
    assert compare([of("a", 1, 2, stable=2), of("b", 2)]).healthy


def test_rollback_is_newer_than_what_it_undoes():
    undone = said("b", step=7)
    back = said("a", step=5, records=8)
    report = compare([undone, back])
    assert report.problems == ("b: behind at ctr 3.7, the newest is 3.5",)


def test_minority_digest_of_one_generation_is_reported_diverged():
    replicas = [said("a"), said("b"), said("c", digest="other")]
    report = compare(replicas)
    assert wrong(report) == {"c": "DIVERGED"}
    assert report.problems == ("c: DIVERGED at ctr 3.7: others serve different content for this generation",)
    assert wrong(compare(replicas[1:])) == {"b": "DIVERGED", "c": "DIVERGED"}, "of two, nobody knows which"


def test_self_reported_divergence_is_believed_and_not_a_reference():
    report = compare([said("a", step=9, state="DIVERGED", reason="delta 9: replaced"), said("b", step=7)])
    assert report.problems == ("a: DIVERGED at ctr 3.9: delta 9: replaced",)


def test_waiting_is_a_problem_and_held_is_not():
    waits = {"state": "WAITING", "reason": "delta 8 refused", "records": 8, "behind": 1}
    held = {"state": "HELD", "reason": "to look at", "records": 9, "behind": 1}
    assert compare([said("a", **waits), said("b", **waits)]).problems == (
        "a: WAITING at ctr 3.7: delta 8 refused",
        "b: WAITING at ctr 3.7: delta 8 refused",
    )
    assert compare([said("a", **held), said("b", **held)]).healthy


def test_replica_refusing_a_served_delta_is_behind_with_its_reason():
    report = compare([
        said("a", step=8),
        said("b", step=7, state="WAITING", reason="delta 8 refused: x", records=8, behind=1),
    ])  # fmt: skip
    assert report.problems == ("b: behind at ctr 3.7, the newest is 3.8: delta 8 refused: x",)


def test_missing_newer_version_is_reported_and_an_older_is_not():
    both = {"ready": True, "models": {"ctr": {"served": {"3": served(), "4": served()}}}}
    report = compare([read_report("a", both), said("b", version=3), said("c", version=4)])
    assert report.problems == ("b: does not serve version 4 of ctr",)


def test_requested_model_that_no_replica_serves_is_reported():
    report = compare(
        [ReplicaStatus("a", ready=True), ReplicaStatus("b", problem="unreachable: Connection refused")], "ctr"
    )
    assert report.problems == ("b: unreachable: Connection refused", "a: does not serve ctr")
    assert compare([said("a"), ReplicaStatus("b", ready=True)], "ctr").problems == (
        "b: does not serve version 3 of ctr",
    )


def test_unready_or_unresponsive_replica_is_a_problem():
    report = compare([said("a", ready=False), said("b"), ReplicaStatus("c", problem="unreachable: no route")])
    assert report.problems == ("c: unreachable: no route", "a: not ready")


def test_empty_fleet_is_unhealthy():
    assert compare([]).problems == ("no replicas found",)


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {"ready": True},
        {"ready": 1, "models": {}},
        {"ready": True, "models": {"ctr": {}}},
        {"ready": True, "models": {"ctr": {"served": {"x": served()}}}},
        {"ready": True, "models": {"ctr": {"served": {"3" * 30: served()}}}},
        {"ready": True, "models": {"ctr": {"served": {"3": {**served(), "generation": "3"}}}}},
        {"ready": True, "models": {"ctr": {"served": {"3": served(state="GREAT")}}}},
        {"ready": True, "models": {"ctr": {"served": {"3": served(records=-1)}}}},
        {"ready": True, "models": {"ctr": {"served": {"3": served(staleness_s=float("nan"))}}}},
        {"ready": True, "models": {"ctr": {"served": {"3": served(staleness_s="long")}}}},
        {"ready": True, "models": {f"m{n}": {"served": {}} for n in range(10_001)}},
    ],
)
def test_malformed_report_is_refused(document):
    with pytest.raises(BadInput, match="expected"):
        read_report("a", document)


def test_replica_without_a_log_or_staleness_has_a_digest():
    old = {"ready": True, "models": {"ctr": {"served": {"3": {"generation": "3.7", "digest": "d7", "chain": None}}}}}
    (line,) = compare([read_report("a", old)]).lines
    assert (line.standing.step, line.standing.state, line.standing.staleness_s) == (7, "", None)


def test_replica_text_is_shortened_and_printable():
    report = compare([said("a", state="DIVERGED", reason="\x1b[31m" + "x" * 10_000)])
    assert len(report.problems[0]) < 300
    assert report.problems[0].isprintable()


KEYS = st.sampled_from(["ready", "models", "served", "3", "ctr", "generation", "digest", "chain", "state"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_arbitrary_json_is_a_report_or_refused(document):
    try:
        told = read_report("a", document)
    except BadInput:
        return
    compare([told])


STANDINGS = st.builds(
    ReplicaVersion,
    st.integers(0, 3),
    st.sampled_from(["d0", "d1", "d2"]),
    st.sampled_from(["CURRENT", "WAITING", "HELD", "DIVERGED"]),
    st.just("why"),
    st.integers(0, 5),
    st.integers(0, 2),
    st.none() | st.floats(0, 100),
)
FLEETS = st.lists(
    st.builds(
        lambda ready, problem, versions: (ready, problem, {} if problem else versions),
        st.booleans(),
        st.sampled_from(["", "", "unreachable"]),
        st.dictionaries(st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 2)), STANDINGS, max_size=3),
    ),
    max_size=5,
).map(lambda told: [ReplicaStatus(f"r{n}", *each) for n, each in enumerate(told)])


@settings(max_examples=50)
@given(FLEETS, st.randoms())
def test_result_does_not_depend_on_replica_order(replicas, random):
    report = compare(replicas)
    shuffled = list(replicas)
    random.shuffle(shuffled)
    assert sorted(compare(shuffled).problems) == sorted(report.problems)
    assert set(map(judged, compare(shuffled).lines)) == set(map(judged, report.lines))


def judged(line):
    return line.where, line.model, line.version, line.wrong, line.behind


@settings(max_examples=50)
@given(FLEETS)
def test_healthy_means_all_replicas_are_ready_with_equal_digests(replicas):
    report = compare(replicas)
    digests = {(line.model, line.version, line.standing.digest) for line in report.lines if line.standing}
    versions = {(line.model, line.version) for line in report.lines}
    if report.healthy:
        assert replicas
        assert all(said.ready and not said.problem for said in replicas)
        assert len(digests) == len(versions)
        assert all(line.standing.state in ("CURRENT", "HELD") for line in report.lines)
    else:
        assert report.problems
    assert all(line.behind >= 0 for line in report.lines)
    assert all(bool(line.wrong) == bool(line.why) for line in report.lines)


@settings(max_examples=50)
@given(FLEETS)
def test_every_version_has_a_replica_that_is_not_behind(replicas):
    report = compare(replicas)
    for key in {(line.model, line.version) for line in report.lines}:
        found = [line for line in report.lines if (line.model, line.version) == key and line.standing]
        assert any(line.wrong != "BEHIND" for line in found)


def test_report_parses_the_server_overview():
    """The keys are those of processor.versions.overview.describe."""
    document = json.loads(json.dumps({"ready": True, "models": {"ctr": {"served": {"3": served()}}}, "more": 1}))
    assert read_report("a", document, model="ctr").versions["ctr", 3].records == 7
    assert read_report("a", document, model="other").versions == {}
