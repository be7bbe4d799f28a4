"""Secure sums of updates, at the site and at the server: keys, messages, and the protection against repeats."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedvlp.core.aggregation.fixed_point import decode, encode
from fedvlp.core.state import State, numel, select
from fedvlp.sites.registry import SiteRegistry
from fedvlp.sites.secure_sum.protocol import Parts, SumSite, sum_sites
from fedvlp.sites.wire import Message, SiteError, SiteProblem
from fedvlp.training.engine import PhaseResults
from fedvlp.training.secure_sum import sum_error, sum_weight, weightings
from fedvlp.training.task import ClientResult, PhaseTask
from fedvlp.utils.config_files import read_yaml
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_json

# No client repeats a round: the difference of two sums could be the update of a client that is only in one of them.
REVEALED = "has already revealed its part in the sum of this or a later round"
# Values of requests that differ between sites. All other values enter the tag, so that sites refuse if they differ.
OWN = ("client", "domain", "seed", "personal", "optimizer")


class SiteSums:
    """A site's part in the secure sums of a run; raises a SiteProblem if ``key`` or ``roster.yaml`` can't be used."""

    def __init__(self, name: str, keys: Path, prepared: Message, folder: Path) -> None:
        self.name = name
        self.prepared = prepared.digest(exclude=OWN)
        self.answered = folder / "secure_sum.json"  # the last round and phase in which the site revealed its part
        self.round_and_phase = [0, 0]  # of the sum under way
        self.current_sum: SumSite | None = None
        self.key, self.roster = _read_keys(name, keys)

    def check(self, request: Message) -> None:
        """Raise a SiteProblem if the site has revealed its part in the sum of this or a later round."""
        last: list[int] = json.loads(self.answered.read_text(encoding="utf-8")) if self.answered.exists() else []
        if _round_and_phase(request) <= last:
            raise SiteProblem(REVEALED)

    def begin(self, request: Message, result: ClientResult) -> State:
        """Begin the sum of a request that passed ``check``; the site sends its keys instead of an update."""
        weighting = request.values["weighting"]
        if reason := sum_error(result, weighting):
            raise SiteProblem(reason)
        numbers = encode(result.update.state, sum_weight(result, weighting))
        about = self.prepared + request.digest(exclude=OWN)
        # Set last: a refused request must not change the round that the last step writes to the disk.
        self.current_sum = SumSite(self.name, self.key, self.roster, about, numbers)
        self.round_and_phase = _round_and_phase(request)
        return _as_tensors({self.name: self.current_sum.advert})

    def answer(self, request: Message) -> Message:
        """Answer a request of the kind ``sum``."""
        if self.current_sum is None:
            raise SiteProblem("has no secure sum under way: it was restarted, or has revealed its part")
        answer = self.current_sum.answer(request.values["step"], _as_parts(request.tensors))
        if not self.current_sum.steps:
            # Written before the answer is sent, so that a killed process never reveals twice.
            self.answered.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.answered, self.round_and_phase)
            self.current_sum = None
        return Message("summed", {}, _as_tensors(answer))


def _round_and_phase(request: Message) -> list[int]:
    return [request.values["round"], request.values["phase"]]


def _read_keys(name: str, folder: Path) -> tuple[Ed25519PrivateKey, dict[str, Ed25519PublicKey]]:
    """Read the site's private key and the public keys of all sites by name, as written by ``ssh-keygen -t ed25519``."""
    roster: dict[str, Ed25519PublicKey] = {}
    try:
        key = load_ssh_private_key((folder / "key").read_bytes(), password=None)
        for site, line in read_yaml(folder / "roster.yaml").items():
            public = load_ssh_public_key(line.encode())
            if isinstance(public, Ed25519PublicKey):
                roster[site] = public
    except (OSError, ValueError, TypeError, AttributeError, UserError) as error:
        raise SiteProblem("can't read its key or roster.yaml for secure sums; see the site's log") from error
    if not isinstance(key, Ed25519PrivateKey) or roster.get(name) != key.public_key():
        raise SiteProblem("has a key for secure sums that is not ed25519, or not in its roster.yaml")
    return key, roster


def sum_updates(
    registry: SiteRegistry, results: Sequence[ClientResult], task: PhaseTask, min_clients: int
) -> PhaseResults:
    """Sum the updates of the sites that sent their keys; a site that is not in the sum counts as failed."""
    expected = select(task.state.server.shared, task.phase.upload)
    (weighting,) = weightings(task.phase.strategy)
    by_name = {result.client.name: result for result in results}
    adverts = {name: _as_parts(result.update.state) for name, result in by_name.items() if not result.failure}
    replies: dict[str, Message | SiteError] = {}
    revealed: set[str] = set()

    def ask(step: str, parts: Mapping[str, Parts]) -> dict[str, Parts]:
        messages: dict[str, Message] = {}
        for name, part in parts.items():
            client = by_name[name].client
            values = {"run": registry.run, "step": step, "client": client.id, "domain": client.domain}
            messages[name] = Message("sum", values, _as_tensors(part))
        answers = registry.exchange(messages)
        replies.update(answers)
        answered: dict[str, Parts] = {}
        for name, reply in answers.items():
            if isinstance(reply, Message):
                answered[name] = _as_parts(reply.tensors)
        revealed.update(answered if step == "reveal" else ())
        return answered

    problem = "sent no usable answer for the secure sum"
    mean: State = {}
    try:
        survivors, total = sum_sites(registry.data.sites, numel(expected) + 1, adverts, ask, min_clients)
        # The weights are known, so a wrong sum of weights reveals wrong masks or shares, but not their site.
        if total[-1] != sum(sum_weight(by_name[name], weighting) for name in survivors):
            raise SiteError("got no secure sum: the weights do not add up, so a mask or share was wrong")
        mean = decode(total, expected)
    except SiteError as error:
        survivors = set()
        problem = str(error)
    final: list[ClientResult] = []
    for name, result in by_name.items():
        reply = replies.get(name)
        reason = result.failure or (str(reply) if isinstance(reply, SiteError) else problem)
        reason += f"; it {REVEALED}" if name in revealed else ""
        final.append(result if name in survivors else ClientResult.from_failure(result.client, reason))
    return PhaseResults.from_sum(final, mean, is_final=any(REVEALED in result.failure for result in final))


def _as_tensors(parts: Parts) -> State:
    return {name: torch.from_numpy(np.array(bytearray(content), np.uint8)) for name, content in parts.items()}


def _as_parts(tensors: State) -> dict[str, bytes]:
    """Extract the bytes of uint8 tensors; other tensors are ignored, so a site that sends them drops out."""
    return {name: value.numpy().tobytes() for name, value in tensors.items() if value.dtype == torch.uint8}
