"""Key files and signatures: no key is replaced, a secret is its owner's, every wrong file is refused in one line."""

import stat
import sys

import pytest
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec

from freshet_serving.processor.errors import BadInput, Conflict
from freshet_serving.processor.package.signature import PublicKey, Signer, new_key
from tests.support.signing import signer


def test_public_half_verifies_signatures_of_a_new_key(tmp_path):
    private, public, key = new_key(str(tmp_path / "team"))
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    one, known = Signer.read(private), PublicKey.read(public)
    assert (one.id, known.id, PublicKey.read(private).id) == (key, key, key)
    signature = one.sign(b"data")
    assert known.verify(signature, b"data")
    assert not known.verify(signature, b"date")
    assert not known.verify(signer("other").sign(b"data"), b"data")
    assert not known.verify(signature.upper(), b"data")
    assert not known.verify("", b"data")


@pytest.mark.parametrize("there", ["team.key", "team.pub"])
def test_existing_key_is_never_replaced(tmp_path, there):
    (tmp_path / there).write_bytes(b"mine")
    with pytest.raises(Conflict, match=f"{there}: already exists"):
        new_key(str(tmp_path / "team"))
    assert [path.name for path in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_bytes() == b"mine"


def test_unwritable_key_path_error_says_so(tmp_path):
    with pytest.raises(BadInput, match="cannot be written: No such file"):
        new_key(str(tmp_path / "nowhere" / "team"))


@pytest.mark.parametrize("data", [b"", b"x" * 20_000, b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"])
def test_malformed_key_is_refused_in_one_line(tmp_path, data):
    path = tmp_path / "key.pem"
    path.write_bytes(data)
    for read, what in ((PublicKey.read, "trust: "), (Signer.read, "key: ")):
        with pytest.raises(BadInput, match=what) as error:
            read(path)
        assert "\n" not in str(error.value)
        with pytest.raises(BadInput, match=what):
            read(tmp_path / "missing")


def test_keys_of_a_different_kind_are_refused(tmp_path):
    key = ec.generate_private_key(ec.SECP256R1())
    secret = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "a.key").write_bytes(secret)
    (tmp_path / "a.pub").write_bytes(public)
    with pytest.raises(BadInput, match="expected an Ed25519 private key"):
        Signer.read(tmp_path / "a.key")
    with pytest.raises(BadInput, match="expected an Ed25519 public key"):
        PublicKey.read(tmp_path / "a.pub")


def test_missing_library_error_names_the_package_to_install(tmp_path, monkeypatch):
    for name in list(sys.modules):
        if name.partition(".")[0] == "cryptography":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(BadInput, match=r"a signature needs cryptography, .*pip install .*\[signed\]'"):
        new_key(str(tmp_path / "team"))
