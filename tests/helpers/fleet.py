"""A SuperLink's Fleet API on 127.0.0.1 for one node, with faults on request."""

import itertools
import json
import threading
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from flwr.app import Message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedvlp.sites.flower.packing import pack, unpack

REQUESTS = {
    "activate-node": fleet_pb2.ActivateNodeRequest,
    "register-node": fleet_pb2.RegisterNodeFleetRequest,
    "send-node-heartbeat": heartbeat_pb2.SendNodeHeartbeatRequest,
    "pull-messages": fleet_pb2.PullMessagesRequest,
    "push-messages": fleet_pb2.PushMessagesRequest,
    "pull-object": message_pb2.PullObjectRequest,
    "push-object": message_pb2.PushObjectRequest,
    "confirm-message-received": message_pb2.ConfirmMessageReceivedRequest,
}
NODE = 7


class Fleet(ThreadingHTTPServer):
    """The server.

    Attributes:
        faults: Faults of the next requests by path: a status, an error's (status, code), seconds to wait, "drop" for
            a request that does not arrive, "mute" for a lost answer, or "lose" for a push session that ended.
        counts: Number of requests by path.
        ahead: Seconds by which the server's clock is ahead.
        state: "unknown" for a node without a registered key, "offline" or "online".
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.faults = defaultdict(list)
        self.counts = Counter()
        self.state = "offline"
        self.ahead = 0
        self.waiting = []
        self.objects = {}
        self.replies = {}
        self.pending = set()
        self.asked = []
        self.registers = False

    @property
    def address(self):
        return f"127.0.0.1:{self.server_address[1]}"

    def ask(self, content):
        """Send bytes or a RecordDict to the node."""
        record = pack(content) if isinstance(content, bytes) else content
        message = Message(record, NODE, "train", ttl=60)
        message.metadata.__dict__["_message_id"] = message.object_id
        self.objects |= {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        self.asked.append(message.object_id)
        self.waiting.append((message, get_object_tree(message)))

    @property
    def answers(self):
        trees = [self.replies.get(name) for name in self.asked]
        whole = [
            tree for tree in trees if tree and {part.object_id for part in iterate_object_tree(tree)} <= {*self.objects}
        ]
        return [unpack(inflate_object_from_contents(tree.object_id, dict(self.objects)).content) for tree in whole]

    def wait(self, condition, seconds=20):
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < seconds, f"{dict(self.counts)}"
            time.sleep(0.005)

    def activate_node(self, request):
        if self.state == "unknown":
            raise Refusal(412, 2004)
        if not request.heartbeat_interval:
            raise Refusal(400, 2003)
        if self.state == "online":
            raise Refusal(412, 2004)
        self.state = "online"
        return fleet_pb2.ActivateNodeResponse(node_id=NODE)

    def register_node(self, request):
        if not self.registers:
            raise Refusal(412, 2001)
        self.state = "offline"
        return fleet_pb2.RegisterNodeFleetResponse(node_id=NODE)

    def send_node_heartbeat(self, request):
        self.state = "online"
        return heartbeat_pb2.SendNodeHeartbeatResponse(success=True)

    def pull_object(self, request):
        content = self.objects.get(request.object_id, b"")
        found = request.object_id in self.objects
        return message_pb2.PullObjectResponse(object_found=found, object_available=found, object_content=content)

    def push_object(self, request):
        is_pending = request.object_id in self.pending
        if is_pending:
            self.pending.remove(request.object_id)
            self.objects[request.object_id] = request.object_content
        return message_pb2.PushObjectResponse(stored=is_pending)

    def confirm_message_received(self, request):
        return message_pb2.ConfirmMessageReceivedResponse()

    def pull_messages(self, request):
        if not self.waiting:
            return fleet_pb2.PullMessagesResponse()
        message, tree = self.waiting.pop(0)
        message.content = type(message.content)()
        return fleet_pb2.PullMessagesResponse(messages_list=[message_to_proto(message)], message_object_trees=[tree])

    def push_messages(self, request):
        tree = request.message_object_trees[0]
        asked = message_from_proto(request.messages_list[0]).metadata.reply_to_message_id
        if asked in self.replies:  # a SuperLink deletes a message once the server has pulled its reply, here at once
            return fleet_pb2.PushMessagesResponse(session_id="session")
        self.replies[asked] = tree
        missing = [part.object_id for part in iterate_object_tree(tree) if part.object_id not in self.objects]
        self.pending |= set(missing)
        return fleet_pb2.PushMessagesResponse(objects_to_push=missing, session_id="session")


class Refusal(Exception):
    """A status, with a code of Flower or None."""


class Handler(BaseHTTPRequestHandler):
    """Answers protobuf over HTTP."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        name = self.path.removeprefix("/v1/fleet/")
        self.server.counts[name] += 1
        request = REQUESTS[name].FromString(self.rfile.read(int(self.headers["content-length"])))
        faults = self.server.faults[name]
        fault = faults.pop(0) if faults else None
        if fault == "drop":
            self.close_connection = True
            return
        if isinstance(fault, float):
            time.sleep(fault)
        try:
            if isinstance(fault, int):
                raise Refusal(fault, None)
            if isinstance(fault, tuple):
                raise Refusal(*fault)
            response = getattr(self.server, name.replace("-", "_"))(request)
            if fault == "lose":
                response = message_pb2.PushObjectResponse(stored=False)
                self.server.objects.pop(request.object_id)
                self.server.pending.clear()
                self.server.replies.clear()
            if fault == "mute":
                self.close_connection = True
                return
            self._send(200, response.SerializeToString())
        except Refusal as refusal:
            status, code = refusal.args
            body = json.dumps({"code": code, "detail": "refused"} if code else {"detail": "refused"})
            self._send(status, body.encode())

    def _send(self, status, body):
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def date_time_string(self, timestamp=None):
        return super().date_time_string(time.time() + self.server.ahead)

    def log_message(self, *words):
        """Print nothing."""


@contextmanager
def fleet():
    """Start the server."""
    with Fleet() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def short_waits():
    """Replace the waits between tries."""
    return itertools.repeat(0.005)
