"""TLS on the gRPC port: whom it lets through, what it shows, and certificates that change."""

import asyncio
import contextlib
import socket
import ssl

import grpc
import pytest

from freshet_serving.serving.access.certificates import Certificates
from tests.serving.access.certified import Authority
from tests.serving.rpc.live import WAIT_S, Live, predict_request
from tests.support.waiting import until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


def certificates(authority, client_ca=b""):
    chain, key = authority.issue("server")
    return Certificates.of({"tls_cert": chain, "tls_key": key, "tls_client_ca": client_ca})


def port_of(live):
    return int(live.address.rpartition(":")[2])


def call(live, credentials):
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(f"localhost:{port_of(live)}", credentials, options) as channel:
        path = "/tensorflow.serving.PredictionService/Predict"
        return len(channel.unary_unary(path)(predict_request().SerializeToString(), timeout=WAIT_S))


def shown(live, authority):
    """The serial number of the certificate that a newcomer sees."""
    context = authority.client()
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port_of(live)), timeout=WAIT_S) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as connection,
    ):
        assert connection.selected_alpn_protocol() == "h2"
        return connection.getpeercert()["serialNumber"]


def test_tls_client_is_answered_and_old_tls_versions_are_not(authority):
    made = certificates(authority)
    with Live(tls=lambda: made) as live:
        assert call(live, grpc.ssl_channel_credentials(authority.certificate)) > 0
        old = authority.client()
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        old.set_ciphers("DEFAULT:@SECLEVEL=0")
        with (
            socket.create_connection(("127.0.0.1", port_of(live)), timeout=WAIT_S) as raw,
            pytest.raises((ssl.SSLError, OSError)),
            old.wrap_socket(raw, server_hostname="localhost"),
        ):
            pass


def test_only_a_trusted_client_certificate_connects(authority):
    made = certificates(authority, authority.certificate)
    with Live(tls=lambda: made) as live:
        chain, key = authority.issue("client")
        assert call(live, grpc.ssl_channel_credentials(authority.certificate, key, chain)) > 0
        with pytest.raises(grpc.RpcError) as refused:
            call(live, grpc.ssl_channel_credentials(authority.certificate))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_new_connections_see_new_certificates_and_existing_ones_continue(authority):
    held = [certificates(authority)]
    with Live(tls=lambda: held[0]) as live:
        before = shown(live, authority)
        assert shown(live, authority) == before
        credentials = grpc.ssl_channel_credentials(authority.certificate)
        with contextlib.closing(grpc.secure_channel(f"localhost:{port_of(live)}", credentials)) as kept:
            predict = kept.unary_unary("/tensorflow.serving.PredictionService/Predict")
            predict(predict_request().SerializeToString(), timeout=WAIT_S)
            held[0] = certificates(authority)
            until(lambda: shown(live, authority) != before)
            predict(predict_request().SerializeToString(), timeout=WAIT_S)
            assert call(live, credentials) > 0


def test_call_in_flight_at_the_end_is_answered(authority):
    made = certificates(authority)
    with Live(tls=lambda: made) as live:
        credentials = grpc.ssl_channel_credentials(authority.certificate)
        with contextlib.closing(grpc.secure_channel(f"localhost:{port_of(live)}", credentials)) as channel:
            live.processor.hold = True
            predict = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
            called = predict.future(predict_request().SerializeToString(), timeout=WAIT_S)
            until(lambda: live.processor.held)
            ending = asyncio.run_coroutine_threadsafe(live.port.stop(), live.loop)
            live.processor.release()
            assert len(called.result(WAIT_S)) > 0
            ending.result(WAIT_S)
