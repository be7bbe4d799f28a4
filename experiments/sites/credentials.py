"""Certificates and keys of a federation on one machine: an authority, a server's certificate, and keys of sites."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

HOST = "127.0.0.1"
DAYS = 2


@dataclass(frozen=True)
class Certificates:
    """Paths of an authority's certificate, and of a server's certificate and key.

    Args:
        folder: Folder of the three files.
    """

    folder: Path

    @property
    def authority(self) -> Path:
        """The certificate for sites."""
        return self.folder / "ca.crt"

    @property
    def server(self) -> Path:
        """The server's certificate."""
        return self.folder / "server.pem"

    @property
    def server_key(self) -> Path:
        """The server's private key."""
        return self.folder / "server.key"


def make_certificates(folder: Path) -> Certificates:
    """Make an authority and a certificate for a server at 127.0.0.1; the authority's key is discarded."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Certificates(folder)
    authority_key = ec.generate_private_key(ec.SECP384R1())
    authority_name = _name("fedvlp test authority")
    authority = (
        _builder(authority_name, authority_name, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    server_key = ec.generate_private_key(ec.SECP384R1())
    # Clients only compare their address with this name.
    names = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address(HOST)), x509.DNSName("localhost")])
    server = (
        _builder(_name("fedvlp test server"), authority_name, server_key, authority_key)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    made.authority.write_bytes(authority.public_bytes(Encoding.PEM))
    made.server.write_bytes(server.public_bytes(Encoding.PEM))
    _write_private(made.server_key, server_key, PrivateFormat.PKCS8)
    return made


def make_node_key(path: Path) -> Path:
    """Make the key of a site, like ``ssh-keygen -t ecdsa -b 384``; return the path of the public key."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(path, key, PrivateFormat.OpenSSH)
    public = path.with_name(f"{path.name}.pub")
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    return public


def make_sum_keys(homes: Mapping[str, Path]) -> None:
    """Make each site's key for secure sums, like ``ssh-keygen -t ed25519``, and each site's roster."""
    roster = ""
    for name, home in homes.items():
        key = ed25519.Ed25519PrivateKey.generate()
        (home / "sum").mkdir()
        _write_private(home / "sum" / "key", key, PrivateFormat.OpenSSH)
        roster += f"{name}: {key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()}\n"
    for home in homes.values():
        (home / "sum" / "roster.yaml").write_text(roster, encoding="utf-8")
        with open(home / "site.yaml", "a", encoding="utf-8") as file:
            file.write("secure_sum: sum\n")


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey | None = None,
) -> x509.CertificateBuilder:
    """Make an unsigned certificate, without the parts that differ between authority and server."""
    now = datetime.datetime.now(datetime.timezone.utc)
    signed_by = (issuer_key or key).public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signed_by), critical=False)
    )


def _usage(signs: bool) -> x509.KeyUsage:
    """Make the permitted uses of a key."""
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _write_private(
    path: Path, key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey, form: PrivateFormat
) -> None:
    """Write a private key that only its owner can read."""
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))
