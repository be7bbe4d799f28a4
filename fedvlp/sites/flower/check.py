"""``fedvlp deploy check``: checks the setup of a site and its server.

Nothing changes at the server. The check sends a request that every server refuses; the refusal reveals whether the
server has registered the site's key and whether both clocks agree.
"""

import argparse
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import httpx
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_public_key
from packaging.requirements import Requirement

from fedvlp.sites.data import SiteImages
from fedvlp.sites.flower.node import activation, clock_offset, load_key, make_client, refusal_reason
from fedvlp.sites.site_config import read_site_config
from fedvlp.sites.wire import installed_versions
from fedvlp.utils.errors import UserError, escape_control_chars

SECONDS = 10.0  # to wait for an answer
STARTED = "import fedvlp.sites.worker"  # takes almost all of the time that a site's process needs to start
MOST_SECONDS = 40.0  # to start; after a minute without heartbeats, Flower counts a site as offline
SOON = timedelta(days=14)  # a certificate that ends sooner should be renewed
# Exceptions of a failed check or of the libraries that it uses.
LIBRARIES = (subprocess.SubprocessError, InvalidSignature, UnsupportedAlgorithm, httpx.TransportError)
PROBLEMS = (UserError, OSError, ValueError, TypeError, *LIBRARIES)
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
        if name == "TLS" and isinstance(problem, OSError):
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
        yield "start", check_start, "Repair the installation: pip install --force-reinstall torch"
        yield "key", partial(check_key, options.key), "Make one with ssh-keygen -t ecdsa -b 384, and register its .pub."
    else:
        check = partial(check_certificate, options.certificate, authority, options.key)
        yield "certificate", check, "Sign a new one with the authority's key."
    advice = f"Check name and firewalls, start the server, and sign its certificate for {host} with {authority}."
    yield "TLS", partial(check_tls, address, authority), advice
    yield "SuperLink", partial(check_superlink, address, authority, private), "Start it; until then sites wait."


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


def check_start() -> str:
    """Measure in how many seconds a site's process starts, if that is soon enough to go on after a restart."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", STARTED], check=True, capture_output=True)
    seconds = time.monotonic() - began
    found = f"a site's process needs {seconds:.0f} s to start"
    if seconds > MOST_SECONDS:
        raise UserError(f"{found}; above {MOST_SECONDS:g} s, a restart may lose messages: use a faster disk")
    return found


def check_validity(pem: bytes) -> str:
    """Report the last day of a certificate, if it is valid now and does not end soon."""
    certificate = x509.load_pem_x509_certificate(pem)
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not first <= datetime.now(timezone.utc) < last - SOON:
        valid = f"valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}"
        raise UserError(f"{valid}: renew it if it ends soon, or set this clock")
    return f"valid until {last:%Y-%m-%d}"


def check_key(path: Path) -> str:
    """Check that Flower supports a site's private key, and that it belongs to the public key next to it."""
    if load_ssh_public_key(Path(f"{path}.pub").read_bytes()) != load_key(path).public_key():
        raise UserError(f"{path}.pub belongs to another key: ssh-keygen -y -f {path} > {path}.pub")
    return f"matches {path}.pub"


def check_certificate(path: Path, authority: Path, key: Path) -> str:
    """Report the last day of the server's certificate, if it belongs to the key and is signed by the authority."""
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    if certificate.public_key() != load_key(key, load_pem_private_key).public_key():
        raise UserError(f"{key} is not the key of {path}: request a certificate with it, or use the right key")
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.read_bytes()))
    return check_validity(path.read_bytes())


def check_tls(address: Address, authority: Path) -> str:
    """Report the last day of the server's certificate, if the authority signed it for the called host."""
    context = ssl.create_default_context(cafile=authority)
    plain = socket.create_connection(address, timeout=SECONDS)
    with plain, context.wrap_socket(plain, server_hostname=address[0]) as secure:
        return check_validity(ssl.DER_cert_to_PEM_cert(secure.getpeercert(binary_form=True) or b"").encode())


def check_superlink(address: Address, authority: Path, private: Path | None) -> str:
    """Check that a SuperLink answers, its clock agrees, and it knows the site's key (or refuses an unknown key)."""
    key = ec.generate_private_key(ec.SECP384R1()) if private is None else load_key(private)
    with make_client(f"{address[0]}:{address[1]}", authority, key, SECONDS) as client:
        try:
            client.ActivateNode(activation(key, 0))  # refused, so it changes nothing at the server
            raise UserError("the SuperLink accepts any heartbeat, unlike Flower 1.41")
        except httpx.HTTPStatusError as refusal:
            reply = refusal.response
    unknown = [httpx.codes.PRECONDITION_FAILED] if private is None else []
    if problem := refusal_reason(reply, [httpx.codes.BAD_REQUEST, *unknown]):
        raise UserError(problem)
    knows = "refuses new keys" if private is None else "knows the key"
    return f"answers, {knows}, and this clock is {clock_offset(reply):+.0f} s from its own"
