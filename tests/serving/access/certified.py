"""Certificates for tests: an authority of its own, servers' and clients' certificates that it has signed."""

import datetime
import ipaddress
import ssl

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM, PKCS8 = form.Encoding.PEM, form.PrivateFormat.PKCS8


def pem_of(key, password=None):
    how = form.BestAvailableEncryption(password) if password else form.NoEncryption()
    return key.private_bytes(PEM, PKCS8, how)


class Authority:
    """An authority, and what it has signed in a folder. made: makes the keys of what it signs."""

    def __init__(self, folder, name="authority", made=lambda: ec.generate_private_key(ec.SECP256R1())):
        self.folder, self._key, self._made = folder, ec.generate_private_key(ec.SECP256R1()), made
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._signed(self._name, self._key, ca=True)
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(self.certificate)

    def issue(self, name):
        """A certificate and its key, PEM."""
        key = self._made()
        return self._signed(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key), pem_of(key)

    def write(self, name="server"):
        """Writes another certificate and key of that name; returns their paths."""
        chain, key = self.issue(name)
        paths = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        for path, data in zip(paths, (chain, key)):
            beside = path.with_suffix(".new")
            beside.write_bytes(data)
            beside.chmod(0o600)
            beside.replace(path)
        return paths

    def client(self, paths=None):
        """The context of a client that believes this authority. paths: of its own certificate and key."""
        context = ssl.create_default_context(cadata=self.certificate.decode())
        if paths is not None:
            context.load_cert_chain(*paths)
        return context

    def _signed(self, subject, key, ca=False):
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        built = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca, None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            # Python 3.13 asks for these.
            .add_extension(_usage(ca), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        return built.sign(self._key, hashes.SHA256()).public_bytes(PEM)


def _usage(ca):
    """What a key may do: an authority signs certificates, another signs what it says."""
    return x509.KeyUsage(
        digital_signature=not ca, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=ca, crl_sign=ca, encipher_only=False, decipher_only=False,
    )  # fmt: skip
