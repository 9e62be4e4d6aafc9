"""What is replaced as it changes is taken of a trusted key alone, for its own model and file, and never older."""

import pytest

from freshet_serving.processor.errors import Corrupt, SigningKeyRequired
from freshet_serving.processor.repository.envelope import opened, wrap_envelope
from freshet_serving.processor.repository.keyring import NO_KEYS
from tests.support.signing import reads, writes

DOCUMENT = {"stable": 3}


def made(before=None, keyring=None, document=DOCUMENT):
    return wrap_envelope(document, before or {}, "ctr", "labels.json", keyring or writes())


def test_document_is_stored_as_is_without_keys():
    assert made(keyring=NO_KEYS) == DOCUMENT
    assert opened(DOCUMENT, "ctr", "labels.json", NO_KEYS) == DOCUMENT


def test_signed_document_is_readable_by_all_and_its_serial_grows():
    first = made()
    second = made(first)
    assert (first["serial"], second["serial"]) == (1, 2)
    for keyring in (NO_KEYS, reads(), writes()):
        assert opened(second, "ctr", "labels.json", keyring) == DOCUMENT
    with pytest.raises(SigningKeyRequired):
        made(first, NO_KEYS)
    with pytest.raises(SigningKeyRequired):
        made(keyring=reads())


@pytest.mark.parametrize(
    "change",
    [{"serial": 2}, {"serial": True}, {"document": {"stable": 4}}, {"document": 1}, {"model": "other"},
     {"file": "traffic.json"}, {"key": "0" * 16}, {"signature": "0" * 128}, {"signature": 1}, {"more": 1}],
)  # fmt: skip
def test_modified_document_is_refused(change):
    with pytest.raises(Corrupt):
        opened({**made(), **change}, "ctr", "labels.json", reads())


def test_unsigned_foreign_or_older_document_is_refused(tmp_path):
    keyring = reads(memory=tmp_path / "memory")
    for raw in (DOCUMENT, made(keyring=writes("stranger"))):
        with pytest.raises(Corrupt, match=r"labels\.json: expected a signature by key"):
            opened(raw, "ctr", "labels.json", keyring)
    first = made()
    opened(made(first), "ctr", "labels.json", keyring)
    with pytest.raises(Corrupt, match="serial 2 or newer"):
        opened(first, "ctr", "labels.json", keyring)
    assert opened({}, "ctr", "labels.json", keyring) == {}
