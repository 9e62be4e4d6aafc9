"""A server that trusts a key, and strangers who can write to its repository: what they do is refused with one line, and
what was trusted is served on."""

import json
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput, Corrupt, Diverged, FreshetError, SigningKeyRequired
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.repository import MANIFEST, NO_KEYS, WARMUP, Repository, VersionReader, add_file
from freshet_serving.processor.repository.log.chain_record import record_name
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.re_signing import check_version, re_sign
from freshet_serving.processor.tables.compaction import compact
from freshet_serving.processor.versions.policy import ModelPolicy
from tests.processor.versions.models import USERS, assert_serves, deltas_folder, open_model, publish
from tests.support.packages import delta_bytes, make_delta, write_package
from tests.support.signing import reads, signed_delta, signer, writes


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "repository"
    write_package(root, users=USERS, keyring=writes())
    return root


@pytest.fixture
def memory(tmp_path):
    return tmp_path / "memory"


def folder(root, version=1):
    return root / "small" / str(version)


def looked(model, times=4):
    return [line for _ in range(times) for line in model.poll()]


def refused(root, keyring):
    """The one line that a server which starts on a repository says of its newest version."""
    model = open_model(root, keyring=keyring)
    assert not model.routes.served
    return next(state.error for state in model.routes.status() if state.error)


def change_log(root, keyring=NO_KEYS):
    return ChangeLog.of(Repository(root).with_keys(keyring).version("small", 1))


def test_content_signed_by_a_trusted_key_is_served_and_followed(root):
    model = open_model(root, keyring=reads())
    signed_delta(root, 1, [1])
    assert model.poll() == ["small 1.1 served"]
    assert_serves(model, "1.1", {1: 1})
    change_log(root, writes()).rollback(0)
    assert model.poll() == ["small rolled back to 1.0"]
    assert open_model(root).pick().digest == model.pick().digest, "signed or not, the same content has the same name"


def test_unsigned_or_foreign_version_is_not_served(root, tmp_path):
    first, other = signer().id, signer("other").id
    assert refused(root, reads("other")) == f"manifest: expected a signature by key {other}, got key {first}"
    write_package(tmp_path / "bare", users=USERS)
    assert refused(tmp_path / "bare", reads()) == f"manifest: expected a signature by key {first}, got none"


def test_newer_foreign_version_is_refused_while_the_trusted_one_serves(root):
    model = open_model(root, keyring=reads())
    write_package(root, 2, users=USERS, keyring=writes("stranger"))
    assert looked(model) == [
        f"small version 2 refused: manifest: expected a signature by key {signer().id}, got key {signer('stranger').id}"
    ]
    assert_serves(model, "1.0")
    assert_serves(open_model(root, keyring=reads()), "1.0")


@pytest.mark.parametrize("who", ["nobody", "stranger"])
def test_foreign_record_is_refused_while_the_trusted_state_serves(root, who):
    model = open_model(root, keyring=reads())
    signed_delta(root, 1, [1])
    model.poll()
    stranger = change_log(root, writes("stranger", ["first"]))
    if who == "nobody":
        # What no writer of ours does: an unsigned record on a chain that is signed.
        publish(root, 2, [2])
        history = stranger.history
        made = history.next("hold", history.head, at=1.0)
        (folder(root) / record_name(2)).write_bytes(made.to_bytes())
        got = "none"
    else:
        stranger.publish(make_delta(2, [2]))
        got = f"key {signer('stranger').id}"
    assert looked(model) == [f"small DIVERGED: record 2: expected a signature by key {signer().id}, got {got}"]
    assert_serves(model, "1.1", {1: 1})
    assert model.chain(1).state == "DIVERGED"
    assert_serves(open_model(root, keyring=reads()), "1.1", {1: 1})
    (folder(root) / record_name(2)).unlink()
    (deltas_folder(root) / "2.safetensors").unlink()
    assert looked(model) == ["small continues: the files match the served version again"]
    signed_delta(root, 2, [3])
    assert "small 1.2 served" in looked(model)


def test_file_dropped_without_a_record_is_not_adopted_with_keys(root):
    model, writer = open_model(root, keyring=reads()), open_model(root, keyring=writes())
    publish(root, 1, [1])
    for one in (model, writer):
        (line,) = looked(one)
        assert line.startswith("small delta 1 waits: delta: expected a signed record, got only the file")
        assert one.chain(1).state == "WAITING"
        assert_serves(one, "1.0")
    assert change_log(root, writes()).history.number == 0
    # The trainer goes on past it.
    signed_delta(root, 1, [2])
    assert "small 1.1 served" in looked(model)
    assert_serves(model, "1.1", {2: 1})


def test_uploads_need_a_server_with_a_signing_key(root, tmp_path):
    one, other = open_model(root, keyring=writes()), open_model(root, keyring=reads())
    data = delta_bytes(1, [1])
    with pytest.raises(SigningKeyRequired, match=r"signed by key .*, and this process has no key; set FRESHET_KEY"):
        other.apply_bytes(data)
    assert not list(deltas_folder(root).iterdir())
    one.apply_bytes(data)
    assert looked(other) == ["small 1.1 served"]
    assert change_log(root).history.head.record.key == signer().id


def test_rollback_without_a_key_is_local_and_temporary(root):
    signed_delta(root, 1, [1])
    one, other = open_model(root, keyring=reads()), open_model(root, keyring=reads())
    assert not one.rollback(Generation(1, 0)).recorded
    assert (one.chain(1).state, looked(other)) == ("HELD", [])
    signed_delta(root, 2, [2], parent=1)
    change_log(root, writes()).rollback(1)
    looked(one)
    assert_serves(one, "1.1", {1: 1})


def test_writing_to_a_signed_repository_needs_a_key(root):
    version = Repository(root).version("small", 1)
    for write in (
        lambda: change_log(root).publish(make_delta(1, [1])),
        lambda: change_log(root).hold(),
        lambda: add_file(version, WARMUP, b""),
        lambda: write_package(root, 2, keyring=reads()),
    ):
        with pytest.raises(SigningKeyRequired):
            write()
    assert open_model(root, keyring=reads()).routes.served
    assert Repository(root).versions("small") == [1]


# Replay and downgrade.


def snapshot_of(root, tmp_path, name="copy"):
    shutil.copytree(root, tmp_path / name)
    return tmp_path / name


def put_back(root, copy):
    shutil.rmtree(root)
    shutil.copytree(copy, root)


def test_truncated_log_is_refused_after_a_restart_while_memory_serves(root, tmp_path, memory):
    signed_delta(root, 1, [1])
    copy = snapshot_of(root, tmp_path)
    signed_delta(root, 2, [2])
    model = open_model(root, keyring=reads(memory=memory))
    assert_serves(model, "1.2", {1: 1, 2: 2})
    put_back(root, copy)
    assert looked(model) == ["small DIVERGED: delta 1.2: is served, but its file no longer exists"]
    assert_serves(model, "1.2", {1: 1, 2: 2})
    wanted = "record 2: expected the one that was trusted here before, got a change log that ends before it"
    assert refused(root, reads(memory=memory)) == f"{wanted}; `freshet keys accept` resets the trusted state"
    assert reads(memory=memory).memory.forget("small")
    assert_serves(open_model(root, keyring=reads(memory=memory)), "1.1", {1: 1})


def test_replaced_record_under_a_trusted_number_is_refused_although_signed(root, tmp_path, memory):
    copy = snapshot_of(root, tmp_path)
    signed_delta(root, 1, [1])
    open_model(root, keyring=reads(memory=memory))
    put_back(root, copy)
    signed_delta(root, 1, [2])
    assert "record 1: expected the one that was trusted here before, got a different one" in refused(
        root, reads(memory=memory)
    )


def test_older_served_version_does_not_replace_a_deleted_newer_one(root, memory):
    write_package(root, 2, users=USERS, keyring=writes())
    both = ModelPolicy.parse({"versions": "latest:2"}, "policy")
    model = open_model(root, keyring=reads(memory=memory), policy=both)
    assert set(model.routes.served) == {1, 2}
    shutil.rmtree(folder(root, 2))
    looked(model)
    assert model.pick().manifest.version == 2


@pytest.mark.parametrize("how", ["removed", "damaged"])
def test_older_version_never_replaces_a_newer_served_one(root, memory, how):
    write_package(root, 2, users=USERS, keyring=writes())
    model = open_model(root, keyring=reads(memory=memory))
    assert model.pick().manifest.version == 2
    if how == "removed":
        shutil.rmtree(folder(root, 2))
    else:
        (folder(root, 2) / MANIFEST).write_bytes(b"{}")
    lines = looked(model)
    assert model.pick().manifest.version == 2
    if how == "removed":
        assert not any("1.0 loaded" in line for line in lines)
    restarted = open_model(root, keyring=reads(memory=memory))
    assert not restarted.routes.served
    said = {state.version: state.error for state in restarted.routes.status()}
    assert (
        said[1]
        == "expected version 2 or newer as trusted here before, got 1; `freshet keys accept` resets the trusted state"
    )
    named = ModelPolicy.parse({"versions": [1]}, "policy")
    assert open_model(root, keyring=reads(memory=memory), policy=named).pick().manifest.version == 1


def test_older_manifest_edition_or_replaced_version_is_refused(root, tmp_path, memory):
    before = (folder(root) / MANIFEST).read_bytes()
    add_file(Repository(root).with_keys(writes()).version("small", 1), WARMUP, b"more")
    open_model(root, keyring=reads(memory=memory))
    (folder(root) / MANIFEST).write_bytes(before)
    assert refused(root, reads(memory=memory)).startswith(
        "manifest: expected edition 1 or newer as trusted here before, got edition 0"
    )
    other = tmp_path / "other"
    write_package(other, users=USERS, seed=1, keyring=writes())
    put_back(root, other)
    assert "expected version 1 as trusted here before, got a different one" in refused(root, reads(memory=memory))


def test_records_of_another_version_or_repository_are_refused(root, tmp_path):
    other = tmp_path / "other"
    write_package(other, users=USERS, seed=1, keyring=writes())
    signed_delta(other, 1, [1])
    version = Repository(other).with_keys(writes()).version("small", 1)
    compact(version, ChangeLog.of(version))
    signed_delta(other, 2, [2])
    for name in ("chain", "deltas", "snapshots"):
        if (folder(other) / name).exists():
            shutil.copytree(folder(other) / name, folder(root) / name, dirs_exist_ok=True)
    model = open_model(root, keyring=reads())
    assert_serves(model, "1.0")
    assert "a signature that does not match the content" in model.chain(1).reason


def test_foreign_or_older_labels_and_traffic_are_ignored(root, memory, caplog):
    keyring = reads(memory=memory)
    repository = Repository(root).with_keys(writes())
    path = root / "small" / "labels.json"
    path.write_text('{"stable": 1}')
    assert Repository(root).with_keys(keyring).labels("small") == {}
    assert "labels.json: expected a signature by key" in caplog.text
    repository.keep_labels("small", {"stable": 1})
    older = path.read_bytes()
    repository.keep_labels("small", {"stable": 1, "canary": 1})
    assert Repository(root).with_keys(keyring).labels("small") == {"stable": 1, "canary": 1}
    assert Repository(root).labels("small") == {"stable": 1, "canary": 1}
    path.write_bytes(older)
    assert Repository(root).with_keys(keyring).labels("small") == {}
    with pytest.raises(SigningKeyRequired):
        Repository(root).keep_labels("small", {})
    with pytest.raises(SigningKeyRequired):
        Repository(root).with_keys(keyring).keep_traffic("small", {})


def test_labels_survive_a_change_of_keys_also_when_all_are_removed(root):
    model = open_model(root, keyring=writes())
    for change in (lambda: model.set_label("stable", 1), lambda: model.remove_label("stable")):
        change()
        both, kept = writes("next", trusts=["first"]), dict(model.routes.labels)
        Repository(root).with_keys(both).re_sign_kept("small")
        renewed = Repository(root).with_keys(reads("next"))
        renewed.check_kept("small")
        assert renewed.labels("small") == kept


def test_labels_of_a_stranger_are_not_signed_again(root):
    Repository(root).with_keys(writes("stranger")).keep_labels("small", {})
    Repository(root).with_keys(writes()).re_sign_kept("small")
    with pytest.raises(Corrupt, match=r"labels\.json: expected a signature by key"):
        Repository(root).with_keys(reads()).check_kept("small")


# Every byte.


def build(root):
    """A signed repository with a snapshot, deltas before and after it, a rollback and a hold."""
    write_package(root, users=USERS, keyring=writes())
    for step in (1, 2):
        signed_delta(root, step, [step])
    version = Repository(root).with_keys(writes()).version("small", 1)
    compact(version, ChangeLog.of(version))
    signed_delta(root, 3, [3])
    change_log(root, writes()).rollback(2)
    signed_delta(root, 4, [4], parent=2)
    change_log(root, writes()).hold("so")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("signed") / "repository"
    build(root)
    return root


def prefixes(root):
    """The digests that were signed at one time or another as what is to be served."""
    return set(ChangeLog.of(Repository(root).version("small", 1), whole=True).history.links)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_byte_is_never_served(made, tmp_path_factory, data):
    root = tmp_path_factory.mktemp("flipped") / "repository"
    shutil.copytree(made, root)
    files = sorted(p for p in folder(root).rglob("*") if p.is_file())
    path = data.draw(st.sampled_from(files))
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(content))
    model = open_model(root, keyring=reads())
    if model.routes.served:
        assert model.pick().digest in prefixes(made)
        serves = {"1.0": {}, "1.1": {1: 1}, "1.2": {1: 1, 2: 2}, "1.3": {1: 1, 2: 2, 3: 3}, "1.4": {1: 1, 2: 2, 4: 4}}
        generation = str(model.pick().generation)
        assert_serves(model, generation, serves[generation])
    with pytest.raises(FreshetError):
        # Files that nothing needs any more are checked as well, where somebody asks for all.
        check_version(Repository(root).with_keys(reads()).version("small", 1))


@settings(max_examples=15, deadline=None)
@given(seed=st.randoms(use_true_random=False))
def test_trusting_follower_always_serves_a_prefix_of_signed_records(made, tmp_path_factory, seed):
    """Records are removed, swapped, doubled, taken from strangers, while somebody follows."""
    root = tmp_path_factory.mktemp("followed") / "repository"
    shutil.copytree(made, root)
    known, records = prefixes(made), sorted((folder(root) / "chain").iterdir())
    contents = [path.read_bytes() for path in records]
    for path in records:
        path.unlink()
    model = open_model(root, keyring=reads())
    for _ in range(8):
        number = seed.randrange(len(records))
        what = seed.choice(["right", "right", "right", "wrong", "gone"])
        if what == "gone":
            records[number].unlink(missing_ok=True)
        else:
            records[number].write_bytes(contents[number if what == "right" else seed.randrange(len(contents))])
        looked(model, 2)
        assert model.pick().digest in known
    for path, content in zip(records, contents):
        path.write_bytes(content)
    looked(model, 12)
    assert_serves(model, "1.4", {1: 1, 2: 2, 4: 4})


# Rotation.


def test_key_rotation_trusts_two_keys_and_then_drops_the_old(root, tmp_path, memory):
    signed_delta(root, 1, [1])
    version = Repository(root).with_keys(writes()).version("small", 1)
    compact(version, ChangeLog.of(version))
    signed_delta(root, 2, [2])
    model = open_model(root, keyring=reads("first", "second", memory=memory))
    with pytest.raises(Corrupt, match="manifest: expected a signature by key"):
        Repository(root).with_keys(writes("second")).version("small", 1)
    signed_delta(root, 3, [3], keyring=writes("second", ["first"]))
    assert looked(model) == ["small 1.3 served"]
    assert refused(root, reads("second")).startswith("manifest: expected a signature by key")
    made = re_sign(Repository(root).with_keys(writes("second", ["first"])), "small", 1)
    assert (made.key, made.edition, made.vouched.number) == (signer("second").id, 1, 4)
    signed_delta(root, 4, [4], keyring=writes("second"))
    assert looked(model) == ["small 1.4 served"]
    for keyring in (reads("second"), reads("second", memory=memory)):
        after = open_model(root, keyring=keyring)
        assert_serves(after, "1.4", {1: 1, 2: 2, 3: 3, 4: 4})
        assert after.pick().digest == model.pick().digest
    # The old key vouches for nothing any more, and what the new one vouches for is that and nothing else.
    signed_delta(root, 5, [5], keyring=writes("first", ["second"]))
    assert f"got key {signer().id}" in "".join(looked(after))
    copy = snapshot_of(root, tmp_path)
    record = folder(copy) / record_name(2)
    record.write_bytes(record.read_bytes().replace(b'"reason":""', b'"reason":"x"'))
    assert "the manifest names" in open_model(copy, keyring=reads("second")).chain(1).reason


def test_unsigned_repository_is_signed_in_place(tmp_path):
    root = tmp_path / "bare"
    write_package(root, users=USERS)
    before = open_model(root)
    change_log(root).publish(make_delta(1, [1]))
    before.poll()
    assert refused(root, reads()).endswith("got none")
    with pytest.raises(Corrupt, match="got none"):
        re_sign(Repository(root).with_keys(writes()), "small", 1)
    re_sign(Repository(root).with_keys(writes()), "small", 1, unsigned=True)
    with pytest.raises(BadInput, match="use --trust, not --unsigned"):
        re_sign(Repository(root).with_keys(writes("other")), "small", 1, unsigned=True)
    after = open_model(root, keyring=reads())
    assert after.pick().digest == before.pick().digest
    signed_delta(root, 2, [2])
    assert (looked(before), looked(after)) == (["small 1.2 served"], ["small 1.2 served"])


def test_unsigned_files_are_byte_for_byte_unchanged(tmp_path):
    write_package(tmp_path, users=USERS)
    manifest = json.loads((folder(tmp_path) / MANIFEST).read_bytes())
    assert not manifest.keys() & {"key", "signature", "edition", "vouched"}
    assert all(entry.keys() == {"nbytes", "crc32"} for entry in manifest["files"].values())
    change_log(tmp_path).publish(make_delta(1, [1]))
    assert b'"format":"freshet-record/1"' in (folder(tmp_path) / record_name(1)).read_bytes()


def test_signed_manifest_has_one_canonical_form(root):
    data = (folder(root) / MANIFEST).read_bytes()
    assert Manifest.from_json(data).to_json() == data
    (folder(root) / MANIFEST).write_bytes(data.rstrip() + b" \n")
    with pytest.raises(Corrupt, match="not in canonical form"):
        VersionReader(folder(root))
    (folder(root) / MANIFEST).write_bytes(data)
    (folder(root) / "chain").mkdir(exist_ok=True)
    (folder(root) / record_name(1)).write_bytes(b"{}")
    with pytest.raises(Diverged):
        ChangeLog.of(Repository(root).with_keys(reads()).version("small", 1))
