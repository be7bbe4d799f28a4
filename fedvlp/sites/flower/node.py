"""``fedvlp site serve``: connects a site to a SuperLink, and answers its messages in this process.

It speaks Flower's Fleet API like ``flower-supernode``, but fetches and runs no app: a message is bytes for ``Site``.
Only this file and one line of ``server_app.py`` use internals of Flower.
"""

import argparse
import logging
import os
import random
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.hazmat.primitives.serialization import load_ssh_private_key as load_ssh
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2
from flwr.proto.node_pb2 import Node
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.inflatable import inflatable_object as objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode import fleet_http_client
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedvlp.sites.flower.packing import pack, unpack
from fedvlp.sites.process import Status, single_process
from fedvlp.sites.wire import MAX_BYTES
from fedvlp.utils.errors import UserError, to_one_line
from fedvlp.utils.files import atomic_write, write_bytes

KEY = "node.key"  # in the site's home, unless --key names another file
PENDING = "pending"  # in the site's home: ids of the message that is being answered
SECONDS = 60.0  # to wait for the SuperLink's answer
SECONDS_TO_REPEAT = 5.0  # between attempts to connect
POLLS = (0.2, 3.0)  # shortest and longest seconds between polls
PrivateKey = ec.EllipticCurvePrivateKey
log = logging.getLogger(__name__)
# Flower waits only 5 s for the answer to a heartbeat, but a busy SuperLink may need more.
fleet_http_client.HEARTBEAT_CALL_TIMEOUT = HEARTBEAT_DEFAULT_INTERVAL


class Refused(UserError):  # noqa: N818 (it may be expected)
    """Raised if the SuperLink refuses a request for good, with the reply's ``status``."""

    def __init__(self, reply: httpx.Response) -> None:
        super().__init__(f"The server refuses this site: {refusal_reason(reply)}.")
        self.status = reply.status_code


class Expired(Exception):  # noqa: N818 (it may be expected)
    """Raised if the server no longer waits for the answer to a message."""


def load_key(path: Path, load: Callable[[bytes, None], Any] = load_ssh) -> Any:
    """Load a private key that only its owner can read."""
    if path.stat().st_mode & 0o077:
        raise UserError(f"other users can read {path}: chmod 600 {path}")
    try:
        key = load(path.read_bytes(), None)
    except ValueError as error:
        raise UserError(f"{path} is no private key that can be read: {error}") from error
    if load is load_ssh and not isinstance(key, PrivateKey):
        raise UserError(f"Flower does not support the type of {path}: ssh-keygen -t ecdsa -b 384")
    return key


def own_key(home: Path) -> Path:
    """Return the path of the key in a site's home, and make it if it is missing."""
    path = home / KEY
    if not path.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        with atomic_write(path) as temporary:
            temporary.touch(mode=0o600)
            temporary.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return path


def make_client(address: str, authority: Path | None, key: PrivateKey, seconds: float = SECONDS) -> FleetHttpClient:
    """Make a client that signs its requests with a site's key; without an authority, it does not encrypt them."""
    signing = [NodeAuthHttpInterceptor(key, key.public_key())]
    if authority is None:
        return FleetHttpClient(f"http://{address}", interceptors=signing, timeout=seconds)
    context = ssl.create_default_context(cafile=authority)
    return FleetHttpClient(f"https://{address}", interceptors=signing, verify=context, timeout=seconds)


def activation(key: PrivateKey, interval: float = HEARTBEAT_DEFAULT_INTERVAL) -> fleet_pb2.ActivateNodeRequest:
    """Make a request to bring a node online. A SuperLink refuses an interval of 0 with 400, an unknown key with 412."""
    public = public_key_to_bytes(key.public_key())
    return fleet_pb2.ActivateNodeRequest(public_key=public, heartbeat_interval=interval)


def clock_offset(reply: httpx.Response) -> float:
    """Compute how many seconds this clock is ahead of the server's; 0 if the reply has no date."""
    date = reply.headers.get("date")
    sent = datetime.now(timezone.utc) - reply.elapsed
    return 0.0 if date is None else (sent - parsedate_to_datetime(date)).total_seconds()


def refusal_reason(reply: httpx.Response, expected: Collection[int] = ()) -> str:
    """Explain why a SuperLink refused a site's request; empty if the clocks agree and the status is ``expected``."""
    ahead = clock_offset(reply)
    # Flower refuses a request that was signed in the future or long ago.
    if not -TIMESTAMP_TOLERANCE < ahead < SYSTEM_TIME_TOLERANCE:
        return f"this clock is {ahead:+.0f} s from the server's: set both by NTP"
    if reply.status_code in expected:
        return ""
    if reply.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.PRECONDITION_FAILED):
        return "it does not know the key: at the server, run flwr supernode register KEY.pub SUPERLINK"
    return f"a proxy answers {reply.status_code}: start the SuperLink behind it, or let it forward /v1/fleet/"


def growing_waits() -> Iterator[float]:
    """Yield seconds to wait before another try, up to half a minute, varied so that sites don't return together."""
    wait = 0.5
    while True:
        yield wait * random.uniform(0.8, 1)
        wait = min(2 * wait, 30.0)


class Link:
    """Connection of a site's node to a SuperLink. Every request is repeated without limit until there is an answer."""

    def __init__(self, address: str, authority: Path | None, key: PrivateKey, status: Status) -> None:
        self._client = make_client(address, authority, key)
        self._key = key
        self._is_over = threading.Event()
        self.status = status

    @property
    def _node(self) -> Node:
        return Node(node_id=self.status.node)

    def call(self, method: str, request: Any) -> Any:
        """Call a method of the Fleet API until the SuperLink answers, or raise Refused, Expired or a UserError."""
        state = self.status.state
        for wait in growing_waits():
            try:
                answer = getattr(self._client, method)(request)
            except httpx.HTTPStatusError as error:
                if error.response.is_client_error:
                    reason = FlowerError.from_json(error.response.text)
                    if reason is not None and reason.code == ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED:
                        raise Expired("its run has ended") from error
                    raise Refused(error.response) from error
                problem = f"the server answers {error.response.status_code}"
            except (httpx.TransportError, ValueError) as error:
                if "CERTIFICATE_VERIFY_FAILED" in str(error):
                    raise UserError(f"The server's certificate is not valid: {error}. Check ca.crt.") from error
                problem = str(error) or type(error).__name__
            else:
                if self.status.state == "offline":
                    self.status.report(state)
                    log.info("connected again")
                return answer
            self.status.report("offline")
            log.warning("lost the connection (%s): retry in %.1f s", to_one_line(problem), wait)
            time.sleep(wait)

    def connect(self) -> None:
        """Bring the site's node online, and keep it online with a thread that sends heartbeats."""
        while not self._is_online():
            time.sleep(SECONDS_TO_REPEAT)
        threading.Thread(target=self._send_heartbeats, daemon=True).start()

    def _is_online(self) -> bool:
        """Try to bring the node online."""
        with suppress(Refused):
            # A killed process counts as online for a minute. Its node can't be activated, but needs only a heartbeat.
            if self.status.node and self.call("SendNodeHeartbeat", self._heartbeat()).success:
                return True
        try:
            self.status.node = self.call("ActivateNode", activation(self._key)).node_id
            return True
        except Refused as refusal:
            if refusal.status != httpx.codes.PRECONDITION_FAILED:
                raise
        try:
            self.call("ActivateNode", activation(self._key, 0))
        except Refused as refusal:
            if refusal.status == httpx.codes.BAD_REQUEST:
                log.warning("another process with this key is online, or was killed less than a minute ago")
                return False
        # Only a SuperLink without registered keys, for tests, accepts a new key from a site.
        public = activation(self._key).public_key
        self.call("RegisterNode", fleet_pb2.RegisterNodeFleetRequest(public_key=public))
        return False

    def _heartbeat(self) -> heartbeat_pb2.SendNodeHeartbeatRequest:
        return heartbeat_pb2.SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)

    def _send_heartbeats(self) -> None:
        while not self._is_over.wait(HEARTBEAT_DEFAULT_INTERVAL / 3):
            # The main thread notices a lost connection; this thread only tries again.
            with suppress(httpx.HTTPError, ValueError, RuntimeError):
                self._client.SendNodeHeartbeat(self._heartbeat())

    def close(self) -> None:
        """End the connection. Flower counts the node as offline after a minute, unless another process takes over."""
        self._is_over.set()
        self._client.close()

    def pull(self) -> fleet_pb2.PullMessagesResponse | None:
        """Ask for a message, and return its metadata and the ids of its objects; None if there is none."""
        pulled: Any = self.call("PullMessages", fleet_pb2.PullMessagesRequest(node=self._node))
        return pulled if pulled.messages_list else None

    def receive(self, pulled: fleet_pb2.PullMessagesResponse) -> tuple[Message, bytes]:
        """Pull a message's objects; return its metadata, and its bytes, which are empty if fedvlp did not send it."""
        header = message_from_proto(pulled.messages_list[0])
        tree = pulled.message_object_trees[0]
        contents: dict[str, bytes] = {}
        for part in objects.iterate_object_tree(tree):
            contents[part.object_id] = self._pull_object(header, part.object_id)
            if sum(map(len, contents.values())) > 2 * MAX_BYTES:
                return header, b""
        try:
            message: Any = inflate_object_from_contents(tree.object_id, contents)
            return header, unpack(message.content)
        except Exception as error:
            # Other senders' bytes can make Flower raise any exception.
            log.warning("received a message that is not from fedvlp: %s", to_one_line(str(error)))
            return header, b""

    def _pull_object(self, header: Message, object_id: str) -> bytes:
        run, end = header.metadata.run_id, header.metadata.created_at + header.metadata.ttl
        request = message_pb2.PullObjectRequest(node=self._node, run_id=run, object_id=object_id)
        for wait in growing_waits():
            answer = self.call("PullObject", request)
            if answer.object_available:
                return bytes(answer.object_content)
            # The server may still be sending the object to the SuperLink.
            if not answer.object_found or time.time() > end:
                break
            time.sleep(wait / 5)
        raise Expired("its content is no longer at the server")

    def send(self, header: Message, answer: bytes, seconds: float) -> None:
        """Push the answer to a message, and let the SuperLink delete the message."""
        run = header.metadata.run_id
        reply = Message(pack(answer), reply_to=header)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with objects.no_object_id_recompute():
            request = fleet_pb2.PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[objects.get_object_tree(reply)],
                clientapp_runtime_list=[seconds],
            )
            parts = objects.get_all_nested_objects(reply)
            while True:
                wanted = self.call("PushMessages", request).objects_to_push
                # If an answer was lost, the SuperLink may already have the message, and then it names no objects. It
                # stores each object only once, so pushing again does no harm.
                stored = [self._push_object(run, parts[name]) for name in wanted or parts]
                if any(stored):
                    break
                # The SuperLink ends the session of the objects if the connection is lost for minutes.
                if not wanted:
                    raise Expired("the server no longer waits for it")
        name = header.metadata.message_id
        confirmed = message_pb2.ConfirmMessageReceivedRequest(node=self._node, run_id=run, message_object_id=name)
        self.call("ConfirmMessageReceived", confirmed)

    def _push_object(self, run: int, part: objects.InflatableObject) -> bool:
        """Push an object without the id of its session, which may be lost with an answer."""
        options = {"run_id": run, "object_id": part.object_id, "object_content": part.deflate()}
        return bool(self.call("PushObject", message_pb2.PushObjectRequest(node=self._node, **options)).stored)


def answer_messages(home: Path, link: Link, handle: Callable[[bytes], bytes], poll: float | None) -> None:
    """Answer messages sequentially, without end, with ``handle``.

    ``home`` keeps the ids of the current message: if the process is killed, the next one answers the message. A site
    polls each ``poll`` seconds; None polls often after a message, then less and less often, and less often while the
    server answers slowly.
    """
    pulled = _take_pending(home / PENDING)
    last = time.monotonic()
    while True:
        asked = time.monotonic()
        if pulled is None and (pulled := link.pull()) is not None:
            _keep_trying("keep the message", write_bytes, home / PENDING, pulled.SerializeToString())
        if pulled is None:
            now = time.monotonic()
            adapted = min(max((now - last) / 100, 5 * (now - asked), POLLS[0]), POLLS[1])
            time.sleep(adapted if poll is None else poll)
            continue
        link.status.report("busy")
        try:
            header, content = link.receive(pulled)
            began = time.monotonic()
            answer = _keep_trying("write the ledger", handle, content)
            link.send(header, answer, time.monotonic() - began)
            link.status.answered += 1
        except Expired as reason:
            log.warning("did not answer a message: %s", reason)
        (home / PENDING).unlink(missing_ok=True)
        link.status.report("idle")
        pulled = None
        last = time.monotonic()


def _keep_trying(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function until the disk has space. Nothing is sent without a line in the ledger."""
    for wait in growing_waits():
        try:
            return function(*arguments)
        except OSError as error:
            log.error("can't %s (%s): retry in %.1f s", what, error, wait)
            time.sleep(wait)


def _take_pending(path: Path) -> fleet_pb2.PullMessagesResponse | None:
    """Read and delete the message that a killed process was answering. Deleted first, because it may kill this one."""
    with suppress(FileNotFoundError, ValueError):
        content = path.read_bytes()
        path.unlink()
        return fleet_pb2.PullMessagesResponse.FromString(content)
    return None


def run_serve(arguments: Sequence[str]) -> int:
    """Serve a site until the process is interrupted; return the exit code."""
    parser = argparse.ArgumentParser("fedvlp site serve", description="Answer a server's messages until SIGTERM.")
    parser.add_argument("home", type=Path, metavar="HOME", help="the site's folder, with site.yaml")
    parser.add_argument("--superlink", required=True, metavar="HOST:PORT", help="address of the server")
    encryption = parser.add_mutually_exclusive_group(required=True)
    encryption.add_argument("--root-certificates", type=Path, help="the authority's certificate, ca.crt")
    encryption.add_argument("--insecure", action="store_true", help="do not encrypt, for tests on one machine")
    parser.add_argument("--key", type=Path, help="the site's private key; default: HOME/node.key, made if missing")
    parser.add_argument("--poll", type=float, help="seconds between polls; default: 0.2 after a message, up to 3 later")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each request
    os.umask(0o077)  # only its user may read features and personal tensors
    with single_process(options.home) as status:
        try:
            _serve(options, status)
        except OSError as error:
            raise UserError(f"The site can't be served: {error}.") from error
        except KeyboardInterrupt:
            log.info("ended")
    return 0


def _serve(options: argparse.Namespace, status: Status) -> None:
    key = load_key(options.key or own_key(options.home))
    link = Link(options.superlink, options.root_certificates, key, status)
    from fedvlp.sites.worker import Site

    site = Site(options.home)
    try:
        link.connect()
        log.info("site %r connected to %s as node %d", site.config.name, options.superlink, status.node)
        status.report("idle")
        answer_messages(options.home, link, site.handle, options.poll)
    finally:
        link.close()
