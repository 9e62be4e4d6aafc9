"""Who signs, who is trusted, and what is said to whom is neither."""

import pytest

from freshet_serving.processor.errors import BadInput, Corrupt, SigningKeyRequired
from freshet_serving.processor.package.signature import new_key
from freshet_serving.processor.repository.keyring import NO_KEYS, Keyring
from tests.support.signing import reads, signer, writes


def test_without_keys_nothing_is_verified_or_signed():
    NO_KEYS.check_signature("record 1", "", "", b"")
    NO_KEYS.check_signature("record 1", "ab", "cd", b"")
    assert NO_KEYS.key_for("chain") is None
    assert not NO_KEYS.trusted


def test_signer_trusts_its_own_key_and_configured_ones(tmp_path, monkeypatch):
    keys = [new_key(str(tmp_path / name)) for name in ("one", "two")]
    alone = Keyring.of(keys[0][0])
    assert set(alone.trusted) == {keys[0][2]}
    assert alone.memory is None
    both = Keyring.of(keys[0][0], [keys[1][1]], tmp_path / "memory")
    assert set(both.trusted) == {keys[0][2], keys[1][2]}
    assert both.memory is not None
    monkeypatch.setenv("FRESHET_KEY", str(keys[0][0]))
    monkeypatch.setenv("FRESHET_TRUST", f"{keys[1][1]}, {keys[0][1]}")
    told = Keyring.of_writer()
    assert (told.signer.id, set(told.trusted)) == (keys[0][2], {keys[0][2], keys[1][2]})
    assert Keyring.of_writer(keys[1][0]).signer.id == keys[1][2]


@pytest.mark.parametrize("listed", [" , ", ",", " "])
def test_trusted_key_list_without_a_name_is_refused(monkeypatch, listed):
    monkeypatch.setenv("FRESHET_TRUST", listed)
    with pytest.raises(BadInput, match="FRESHET_TRUST: expected files of public keys separated by commas, got '"):
        Keyring.of_writer()
    monkeypatch.setenv("FRESHET_TRUST", "")
    assert not Keyring.of_writer().trusted


def test_signature_error_names_the_expected_keys_in_one_line():
    keyring, one, other = reads("first", "second"), signer("first"), signer("third")
    keyring.check_signature("record 1", one.id, one.sign(b"data"), b"data")
    wanted = f"record 1: expected a signature by key {one.id} or {signer('second').id}"
    for key, signature, got in (
        ("", "", "got none"),
        (other.id, other.sign(b"data"), f"got key {other.id}"),
        (one.id, one.sign(b"date"), "got a signature that does not match the content"),
        (one.id, other.sign(b"data"), "got a signature that does not match the content"),
        (one.id, "", "got a signature that does not match the content"),
    ):
        with pytest.raises(Corrupt) as error:
            keyring.check_signature("record 1", key, signature, b"data")
        assert str(error.value) == f"{wanted}, {got}"


def test_key_is_required_when_signatures_are_expected_or_present():
    assert writes().key_for("chain", "ab").id == signer().id
    for keyring, signed in ((reads(), ""), (NO_KEYS, "0123456789abcdef")):
        with pytest.raises(SigningKeyRequired, match=r"chain: the repository .*set FRESHET_KEY"):
            keyring.key_for("chain", signed)
