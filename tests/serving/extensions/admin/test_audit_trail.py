"""What was changed lately, refusals included; so much and no more."""

from freshet_serving.serving.extensions.admin.audit_trail import MOST_ENTRIES, MOST_LETTERS
from tests.serving.extensions.admin.fakes import Client

OCTETS = {"content-type": "application/octet-stream"}


def test_changes_and_refusals_are_listed_newest_first():
    client = Client()
    assert client("GET", "/admin/audit").json() == {"entries": []}
    client("POST", "/admin/models/ctr/rollback", json={"generation": "3.16", "reason": "late"})
    client("POST", "/admin/models/ctr/deltas", content=b"conflict", headers=OCTETS)
    refused, done = client("GET", "/admin/audit").json()["entries"]
    assert (done["what"], done["outcome"], done["client"]) == ("roll 'ctr' back to 3.16: 'late'", "done", "127.0.0.1")
    assert refused["outcome"].startswith("refused: delta: continues step 9")
    assert refused["took_ms"] >= 0


def test_reads_are_not_listed_and_the_oldest_entries_are_dropped():
    client = Client()
    client("GET", "/admin/models")
    for n in range(MOST_ENTRIES + 5):
        client("POST", f"/admin/models/{'m' * 100}{n}/versions/3/load")
    entries = client("GET", "/admin/audit").json()["entries"]
    assert len(entries) == MOST_ENTRIES
    assert all(len(e["what"]) <= MOST_LETTERS for e in entries)


def test_entry_shows_the_name_of_the_key_used():
    client = Client(token="s3cret")
    client("POST", "/admin/models/ctr/versions/3/load", headers={"authorization": "Bearer s3cret"})
    (entry,) = client("GET", "/admin/audit", headers={"authorization": "Bearer s3cret"}).json()["entries"]
    assert entry["client"] == "127.0.0.1 (admin token)"
