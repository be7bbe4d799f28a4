"""``fedvlp deploy check``: checks the setup of a site and its server.

Nothing changes at the server. The check sends a request that every server refuses; the refusal reveals whether the
server has registered the site's key and whether both clocks agree.
"""

import argparse
import os
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from functools import partial
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import httpx
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key, load_ssh_public_key
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from packaging.requirements import Requirement

from fedvlp.sites.data import SiteImages
from fedvlp.sites.site_config import read_site_config
from fedvlp.sites.wire import installed_versions
from fedvlp.utils.errors import UserError, escape_control_chars

SECONDS = 10.0  # to wait for an answer
SOON = timedelta(days=14)  # a certificate that ends sooner should be renewed
# Exceptions of a failed check or of the libraries that it uses.
PROBLEMS = (UserError, OSError, ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, httpx.TransportError)
Address = tuple[str, int]


def run_check(arguments: Sequence[str]) -> int:
    """Run the checks and print a line for each; return the exit code, 0 if all pass, otherwise 1."""
    parser = argparse.ArgumentParser("fedvlp deploy check", description="Check the setup of a site and its server.")
    end = parser.add_mutually_exclusive_group(required=True)
    end.add_argument("--site", type=Path, metavar="HOME", help="at a site: its folder, with site.yaml")
    end.add_argument("--certificate", type=Path, help="at the server: its certificate, server.pem")
    parser.add_argument("--key", type=Path, required=True, help="private key of the site, or of the certificate")
    parser.add_argument("--root-certificates", type=Path, required=True, help="the authority's certificate, ca.crt")
    parser.add_argument("--superlink", required=True, metavar="HOST:PORT", help="its address as sites call it")
    is_right = True
    for name, check, advice in checks(parser.parse_args(arguments)):
        problem: Exception | None = None
        try:
            line = f"ok     {check()}"
        except PROBLEMS as error:
            problem, is_right = error, False
            line = f"WRONG  {str(error) or type(error).__name__}"
            line += "" if isinstance(error, UserError) else f". {advice}"
        print(escape_control_chars(f"{name:<13}{line}"), flush=True)  # some of the text comes from the server
        if name in ("port", "TLS") and isinstance(problem, OSError):
            break
    return 0 if is_right else 1


def checks(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], str], str]]:
    """Yield each check's name, the function that returns its result, and advice in case it raises."""
    host, _, port = options.superlink.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"Expected HOST:PORT after --superlink, got {options.superlink!r}.")
    address = (host, int(port))
    authority = options.root_certificates
    private = None if options.site is None else options.key
    yield "versions", check_versions, 'Install the same at both ends: pip install "fedvlp[flower]"'
    yield "authority", lambda: check_validity(authority.read_bytes()), "Get a new ca.crt from the server's operator."
    if options.site is not None:
        yield "home", partial(check_home, options.site), "Let the site's user read its images and write to its home."
        yield "key", partial(check_key, options.key), "Make one with ssh-keygen -t ecdsa -b 384, and register its .pub."
    else:
        check = partial(check_certificate, options.certificate, authority, options.key)
        yield "certificate", check, "Sign a new one with the authority's key."
    yield "port", partial(check_port, address), "Start the server, open the port in firewalls, and check the name."
    advice = f"Sign it for {host} with the key of {authority}; if the connection ended, start the SuperLink behind it."
    yield "TLS", partial(check_tls, address, authority), advice
    yield "SuperLink", partial(check_superlink, address, authority, private), "Start it; until then SuperNodes wait."


def check_versions() -> str:
    """List the installed versions, if fedvlp supports the version of Flower."""
    versions = {"Python": sys.version.split()[0], "flwr": version("flwr"), **installed_versions()}
    for needed in map(Requirement, requires("fedvlp") or ()):
        if needed.name == "flwr" and versions["flwr"] not in needed.specifier:
            raise UserError(f"flwr is {versions['flwr']}; at both ends run: pip install 'flwr{needed.specifier}'")
    return ", ".join(f"{name} {value}" for name, value in versions.items())


def check_home(folder: Path) -> str:
    """Describe the site by name and classes, if its images are readable and its folder is writable."""
    config = read_site_config(folder)
    if config.table is None:
        classes = sorted(path.name for path in Path(str(config.root)).iterdir() if path.is_dir())
    else:
        options: dict[str, Any] = {"table": config.table, "several_labels": config.several_labels}
        classes = SiteImages(config.root, config.name, (), **options).classes_with_images
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"this user can't write the ledger into {folder}: change the folder's owner")
    return f"site {config.name!r} with classes {', '.join(classes)}"


def check_validity(pem: bytes) -> str:
    """Report the last day of a certificate, if it is valid now and does not end soon."""
    certificate = x509.load_pem_x509_certificate(pem)
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not first <= datetime.now(timezone.utc) < last - SOON:
        valid = f"valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}"
        raise UserError(f"{valid}: renew it if it ends soon, or set this clock")
    return f"valid until {last:%Y-%m-%d}"


def load_key(path: Path, load: Callable[[bytes, None], Any]) -> Any:
    """Load a private key that only its owner can read."""
    if path.stat().st_mode & 0o077:
        raise UserError(f"other users can read {path}: chmod 600 {path}")
    return load(path.read_bytes(), None)


def check_key(path: Path) -> str:
    """Check that Flower supports a site's private key, and that it belongs to the public key next to it."""
    key = load_key(path, load_ssh_private_key)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"Flower does not support the type of {path}: ssh-keygen -t ecdsa -b 384")
    if load_ssh_public_key(Path(f"{path}.pub").read_bytes()) != key.public_key():
        raise UserError(f"{path}.pub belongs to another key: ssh-keygen -y -f {path} > {path}.pub")
    return f"matches {path}.pub"


def check_certificate(path: Path, authority: Path, key: Path) -> str:
    """Report the last day of the server's certificate, if it belongs to the key and is signed by the authority."""
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    if certificate.public_key() != load_key(key, load_pem_private_key).public_key():
        raise UserError(f"{key} is not the key of {path}: request a certificate with it, or use the right key")
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.read_bytes()))
    return check_validity(path.read_bytes())


def check_port(address: Address) -> str:
    """Check that the address accepts connections."""
    socket.create_connection(address, timeout=SECONDS).close()
    return "accepts connections"


def check_tls(address: Address, authority: Path) -> str:
    """Report the last day of the server's certificate, if the authority signed it for the called host."""
    context = ssl.create_default_context(cafile=authority)
    plain = socket.create_connection(address, timeout=SECONDS)
    with plain, context.wrap_socket(plain, server_hostname=address[0]) as secure:
        return check_validity(ssl.DER_cert_to_PEM_cert(secure.getpeercert(binary_form=True) or b"").encode())


def check_superlink(address: Address, authority: Path, private: Path | None) -> str:
    """Check that a SuperLink answers, its clock agrees, and it knows the site's key (or refuses an unknown key)."""
    key = ec.generate_private_key(ec.SECP384R1()) if private is None else load_key(private, load_ssh_private_key)
    public = key.public_key()
    server = f"{address[0]}:{address[1]}"
    signing = NodeAuthHttpInterceptor(key, public)
    # Every SuperLink refuses a heartbeat interval of 0 s, so no node is activated.
    question = ActivateNodeRequest(public_key=public_key_to_bytes(public), heartbeat_interval=0)
    sent = datetime.now(timezone.utc)
    with FleetHttpClient.from_server_address(server, False, authority.read_bytes(), interceptors=[signing]) as client:
        try:
            client.ActivateNode(question)
            raise UserError("the SuperLink accepts any heartbeat, unlike Flower 1.41")
        except httpx.HTTPStatusError as refusal:
            reply = refusal.response
    ahead = (sent - parsedate_to_datetime(reply.headers.get("date", ""))).total_seconds()
    # Flower refuses a request that was signed in the future or long ago.
    if not -TIMESTAMP_TOLERANCE < ahead < SYSTEM_TIME_TOLERANCE:
        raise UserError(f"this clock is {ahead:+.0f} s from the server's: set both by NTP")
    if reply.status_code == httpx.codes.PRECONDITION_FAILED and private is not None:
        raise UserError(f"does not know the key: at the server, flwr supernode register {private}.pub SUPERLINK")
    if reply.status_code not in (httpx.codes.BAD_REQUEST, httpx.codes.PRECONDITION_FAILED):
        advice = "start the SuperLink behind it, or let it forward /v1/fleet/"
        raise UserError(f"a proxy answers {reply.status_code}: {advice}")
    knows = "refuses new keys" if private is None else "knows the key"
    return f"answers, {knows}, and this clock is {ahead:+.0f} s from its own"
