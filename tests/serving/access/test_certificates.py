"""What a TLS port may be given, and what it speaks."""

import os
import ssl

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.access.certificates import Certificates
from freshet_serving.serving.access.credentials import AccessControl, CredentialFiles
from freshet_serving.serving.access.rate_limiter import rate_limiter_memory
from tests.serving.access.certified import Authority, pem_of
from tests.support.counters import counted


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


def files(chain, key, client_ca=b""):
    return {"tls_cert": chain, "tls_key": key, "tls_client_ca": client_ca}


def test_no_certificate_means_no_tls():
    assert Certificates.of({}) is None
    assert Certificates.of(files(b"", b"")) is None


def test_tls_1_2_is_the_minimum_and_client_certificates_optional(authority):
    made = Certificates.of(files(*authority.issue("server")))
    assert made.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert made.context.verify_mode is ssl.CERT_NONE
    made = Certificates.of(files(*authority.issue("server"), authority.certificate))
    assert made.context.verify_mode is ssl.CERT_REQUIRED


def test_http_1_1_is_agreed_in_the_handshake(authority):
    served = Certificates.of(files(*authority.issue("server"))).context
    asking = authority.client()
    asking.set_alpn_protocols(["h2", "http/1.1"])
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(back, there, server_hostname="localhost")
    server = served.wrap_bio(there, back, server_side=True)
    done = 0
    while done < 2:
        done = 0
        for side in (client, server):
            try:
                side.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                pass
    assert client.selected_alpn_protocol() == server.selected_alpn_protocol() == "http/1.1"


def test_loading_certificates_leaves_no_descriptor_open(authority):
    pair = files(*authority.issue("server"), authority.certificate)
    Certificates.of(pair)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        Certificates.of(pair)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_invalid_certificate_pair_is_refused_in_one_line(authority):
    chain, key = authority.issue("server")
    _, other = authority.issue("other")
    locked = pem_of(ec.generate_private_key(ec.SECP256R1()), b"password")
    for wrong, said in (
        (
            files(chain, other),
            "tls_cert, tls_key: expected a certificate and its own key in PEM, got key values mismatch",
        ),
        (files(b"nothing", key), "tls_cert, tls_key: expected a certificate"),
        (files(chain, b"nothing"), "tls_cert, tls_key: expected a certificate"),
        (files(chain, locked), "tls_key: expected a key without a password"),
        (files(chain, key, b"nothing"), "tls_client_ca: expected certificates in PEM"),
        (files(chain, key, b"\xff"), "tls_client_ca: expected certificates in PEM"),
    ):
        with pytest.raises(BadInput, match=said):
            Certificates.of(wrong)


def test_new_certificate_pair_is_loaded_and_a_broken_one_ignored(authority, caplog):
    chain, key = authority.write()
    access = AccessControl("", rate_limiter_memory(2))
    held = CredentialFiles({"tls_cert": str(chain), "tls_key": str(key)}, access.take)
    first = access.certificates()
    authority.write()
    held.poll_once()
    assert access.certificates() is first
    held.poll_once()
    assert access.certificates().chain == chain.read_bytes() != first.chain
    second = access.certificates()
    chain.write_bytes(authority.issue("other")[0])
    held.poll_once()
    held.poll_once()
    assert access.certificates() is second
    assert counted(held) == {"reloads": 1, "failures": 1}
    assert "keeping the old ones: tls_cert, tls_key: " in caplog.text
    authority.write()
    held.poll_once()
    held.poll_once()
    assert access.certificates().chain == chain.read_bytes()


def test_key_is_private_and_the_certificate_is_not(authority):
    chain, key = authority.write("modes")
    chain.chmod(0o644)
    access = AccessControl("", rate_limiter_memory(2))
    CredentialFiles({"tls_cert": str(chain), "tls_key": str(key)}, access.take)
    key.chmod(0o644)
    with pytest.raises(BadInput, match=f"tls_key: .* got mode 0644; chmod 600 {key}"):
        CredentialFiles({"tls_cert": str(chain), "tls_key": str(key)}, access.take)
