"""``fedvlp deploy check``: tries what a site and its server need of each other, and reports problems.

Nothing changes at the server. The check sends a request that every server refuses; the refusal shows whether the server
knows the site's key and agrees about the time.
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

from fedvlp.sites.site_config import read_site_config
from fedvlp.sites.wire import versions_here
from fedvlp.utils.errors import UserError, escape_control_chars

SECONDS = 10.0  # to wait for an answer
SOON = timedelta(days=14)  # a certificate that ends within it is to be renewed
# What a check, or a library that it asks, raises where something is wrong.
WRONG = (UserError, OSError, ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, httpx.TransportError)
Address = tuple[str, int]


def run_check(arguments: Sequence[str]) -> int:
    """Print a line for each check as it ends; return the exit code, 0 if all is right, else 1."""
    parser = argparse.ArgumentParser("fedvlp deploy check", description="Try what a site and its server need.")
    end = parser.add_mutually_exclusive_group(required=True)
    end.add_argument("--site", type=Path, metavar="HOME", help="at a site: its folder, with site.yaml")
    end.add_argument("--certificate", type=Path, help="at the server: its certificate, server.pem")
    parser.add_argument("--key", type=Path, required=True, help="private key of the site, or of the certificate")
    parser.add_argument("--root-certificates", type=Path, required=True, help="the authority's certificate, ca.crt")
    parser.add_argument("--superlink", required=True, metavar="HOST:PORT", help="as it is called")
    is_right = True
    for name, check, advice in checks(parser.parse_args(arguments)):
        problem: Exception | None = None
        try:
            line = f"ok     {check()}"
        except WRONG as error:
            problem, is_right = error, False
            line = f"WRONG  {str(error) or type(error).__name__}"
            line += "" if isinstance(error, UserError) else f". {advice}"
        print(escape_control_chars(f"{name:<13}{line}"), flush=True)  # a server chooses some of the words
        if name in ("port", "TLS") and isinstance(problem, OSError):
            break
    return 0 if is_right else 1


def checks(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], str], str]]:
    """Yield each check's name, the function that returns its result, and advice if that raises."""
    host, _, port = options.superlink.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"Expected HOST:PORT behind --superlink, got {options.superlink!r}.")
    address = (host, int(port))
    authority = options.root_certificates
    private = None if options.site is None else options.key
    yield "versions", versions, 'Install the same at both ends: pip install "fedvlp[flower]"'
    yield "authority", lambda: lasts(authority.read_bytes()), "Get ca.crt anew from who runs the server."
    if options.site is not None:
        yield "home", partial(home, options.site), "Let the site's user read its images, and write to its home."
        yield "key", partial(site_key, options.key), "Make one by ssh-keygen -t ecdsa -b 384, and register its .pub."
    else:
        check = partial(server_certificate, options.certificate, authority, options.key)
        yield "certificate", check, "Sign a new one with the authority's key."
    yield "port", partial(listens, address), "Start the server, let firewalls pass the port, and see the name."
    advice = f"Sign it for {host} with the key of {authority}; if the connection ended, start the SuperLink behind it."
    yield "TLS", partial(speaks_tls, address, authority), advice
    yield "SuperLink", partial(superlink, address, authority, private), "Start it; until then SuperNodes wait, offline."


def versions() -> str:
    """List the installed versions; Flower's must be one that fedvlp's extra names."""
    here = {"Python": sys.version.split()[0], "flwr": version("flwr"), **versions_here()}
    for needed in map(Requirement, requires("fedvlp") or ()):
        if needed.name == "flwr" and here["flwr"] not in needed.specifier:
            raise UserError(f"flwr is {here['flwr']}; at both ends run: pip install 'flwr{needed.specifier}'")
    return ", ".join(f"{name} {value}" for name, value in here.items())


def home(folder: Path) -> str:
    """Describe the site by name and classes, if its images can be read and its folder be written."""
    config = read_site_config(folder)
    classes = sorted(path.name for path in Path(config.root).iterdir() if path.is_dir())
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{folder}, where the ledger will be, can't be written: make it this user's")
    return f"site {config.name!r} with classes {', '.join(classes)}"


def lasts(pem: bytes) -> str:
    """Report the end of a certificate, if it is valid now and will be for a while."""
    certificate = x509.load_pem_x509_certificate(pem)
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not first <= datetime.now(timezone.utc) < last - SOON:
        valid = f"valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}"
        raise UserError(f"{valid}: sign it anew where that is soon over, or set this clock")
    return f"valid until {last:%Y-%m-%d}"


def private_key(path: Path, load: Callable[[bytes, None], Any]) -> Any:
    """Read a private key, which only its owner may be able to read."""
    if path.stat().st_mode & 0o077:
        raise UserError(f"others than its owner can read {path}: chmod 600 {path}")
    return load(path.read_bytes(), None)


def site_key(path: Path) -> str:
    """Check that Flower supports a site's private key, and that it belongs to the public key next to it."""
    key = private_key(path, load_ssh_private_key)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path} is of a kind that Flower does not take: ssh-keygen -t ecdsa -b 384")
    if load_ssh_public_key(Path(f"{path}.pub").read_bytes()) != key.public_key():
        raise UserError(f"{path}.pub is of another key: ssh-keygen -y -f {path} > {path}.pub")
    return f"that of {path}.pub"


def server_certificate(path: Path, authority: Path, key: Path) -> str:
    """Report the end of the server's certificate, if it belongs to the key and is signed by the authority."""
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    if certificate.public_key() != private_key(key, load_pem_private_key).public_key():
        raise UserError(f"{key} is not the key of {path}: request a certificate with it, or give the other")
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.read_bytes()))
    return lasts(path.read_bytes())


def listens(address: Address) -> str:
    """Check that something takes connections."""
    socket.create_connection(address, timeout=SECONDS).close()
    return "takes connections"


def speaks_tls(address: Address, authority: Path) -> str:
    """Report the end of the server's certificate, if the authority signed it for the name that is called."""
    context = ssl.create_default_context(cafile=authority)
    plain = socket.create_connection(address, timeout=SECONDS)
    with plain, context.wrap_socket(plain, server_hostname=address[0]) as secure:
        return lasts(ssl.DER_cert_to_PEM_cert(secure.getpeercert(binary_form=True) or b"").encode())


def superlink(address: Address, authority: Path, private: Path | None) -> str:
    """Check that a SuperLink answers, agrees about the time and knows the site's key; a server's new key it refuses."""
    key = ec.generate_private_key(ec.SECP384R1()) if private is None else private_key(private, load_ssh_private_key)
    public = key.public_key()
    where = f"{address[0]}:{address[1]}"
    signing = NodeAuthHttpInterceptor(key, public)
    # A heartbeat each 0 s is refused, so that no node is activated.
    question = ActivateNodeRequest(public_key=public_key_to_bytes(public), heartbeat_interval=0)
    asked = datetime.now(timezone.utc)
    with FleetHttpClient.from_server_address(where, False, authority.read_bytes(), interceptors=[signing]) as client:
        try:
            client.ActivateNode(question)
            raise UserError("the SuperLink takes any heartbeat, as Flower 1.41 does not")
        except httpx.HTTPStatusError as refusal:
            reply = refusal.response
    ahead = (asked - parsedate_to_datetime(reply.headers.get("date", ""))).total_seconds()
    # Flower refuses a request that was signed in its future, or long ago.
    if not -TIMESTAMP_TOLERANCE < ahead < SYSTEM_TIME_TOLERANCE:
        raise UserError(f"this clock is {ahead:+.0f} s from the server's: set both by NTP")
    if reply.status_code == httpx.codes.PRECONDITION_FAILED and private is not None:
        raise UserError(f"does not know the key: at the server, flwr supernode register {private}.pub SUPERLINK")
    if reply.status_code not in (httpx.codes.BAD_REQUEST, httpx.codes.PRECONDITION_FAILED):
        advice = "start the SuperLink behind it, or let it pass /v1/fleet/ on"
        raise UserError(f"a proxy answers {reply.status_code}: {advice}")
    knows = "refuses new keys" if private is None else "knows the key"
    return f"answers, {knows}, and this clock is {ahead:+.0f} s from its own"
