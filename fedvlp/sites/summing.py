"""The secure sum between what a site trained and what the server's loop sees: keys, the last round, and messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from torch import Tensor

from fedvlp.core.aggregation.fixed_point import decode, encode
from fedvlp.core.state import Client, State, numel
from fedvlp.sites.registry import SiteRegistry
from fedvlp.sites.secure_sum import CONTENT, STEPS, Parts, SumError, SumServer, SumSite
from fedvlp.sites.site_config import SumKeys
from fedvlp.sites.wire import Message, SiteError, SiteProblem
from fedvlp.training.client import ClientResult
from fedvlp.training.secure_sum import sum_error, sum_weight, weightings, with_mean
from fedvlp.training.task import PhaseTask
from fedvlp.utils.config_files import read_yaml
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_json

OWN = ("client", "domain", "seed", "personal", "optimizer")
"""Values of requests that differ from site to site; all others are in the tag, so that sites refuse if they differ."""
ANSWERED = "secure_sum.json"
"""In a run's folder at a site: the last round and phase of which it has revealed its part."""


class SiteSums:
    """A site's part in the secure sums of one run.

    Args:
        name: the site's own.
        files: of its key and of the roster.
        prepared: the request of the kind ``prepare``.
        folder: of the run at the site.

    Raises:
        SiteProblem: if key and roster can't be used.
    """

    def __init__(self, name: str, files: SumKeys, prepared: Message, folder: Path) -> None:
        self.name = name
        self.prepared = prepared.digest(without=OWN)
        self.answered = folder / ANSWERED
        self.place = [0, 0]
        self.under_way: SumSite | None = None
        try:
            self.key, self.roster = read_keys(name, files)
        except UserError as error:
            raise SiteProblem("has a key or a roster for secure sums that can't be used; its log says why") from error

    def begin(self, request: Message, result: ClientResult) -> State:
        """What leaves in place of an update: the site's keys for the sum."""
        self.place = [request.values["round"], request.values["phase"]]
        # Two sums of one round with different survivors would give away who is in one of them alone.
        if self.answered.exists() and self.place <= json.loads(self.answered.read_text(encoding="utf-8")):
            raise SiteProblem("has revealed its part in the sum of this round or a later one, which it does once")
        weighting = request.values["weighting"]
        if reason := sum_error(result, weighting):
            raise SiteProblem(reason)
        numbers = encode(result.update.state, sum_weight(result, weighting))
        about = self.prepared + request.digest(without=OWN)
        self.under_way = SumSite(self.name, self.key, self.roster, about, numbers)
        return as_tensors({CONTENT: self.under_way.advert})

    def answer(self, request: Message) -> Message:
        """Answers a request of the kind ``sum``."""
        if self.under_way is None:
            raise SiteProblem("has no secure sum under way: it was restarted, or has revealed its part")
        step = request.values["step"]
        answer = self.under_way.answer(step, as_parts(request.tensors))
        if step == STEPS[-1]:
            # On the disk before it leaves, so that no kill makes the site reveal twice.
            self.answered.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.answered, self.place)
            self.under_way = None
        return Message("summed", {"step": step}, as_tensors(answer))


def read_keys(name: str, files: SumKeys) -> tuple[Ed25519PrivateKey, dict[str, Ed25519PublicKey]]:
    """Reads a site's own key and the public keys of all sites, as ``ssh-keygen -t ed25519`` writes them.

    Raises:
        UserError: if one can't be read, or the site's own is not the one in the roster.
    """
    roster = read_yaml(Path(files.roster))
    if not isinstance(roster, dict):
        raise UserError(f"Expected names of sites with their public keys in {files.roster}; found none.")
    try:
        key = load_ssh_private_key(Path(files.key).read_bytes(), password=None)
        publics = {str(each): load_ssh_public_key(str(line).encode()) for each, line in roster.items()}
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{files.key} or a key in {files.roster} can't be used: {error}") from error
    keys = {each: public for each, public in publics.items() if isinstance(public, Ed25519PublicKey)}
    if not isinstance(key, Ed25519PrivateKey) or len(keys) < len(roster):
        raise UserError(f"Expected keys of ssh-keygen -t ed25519 in {files.key} and {files.roster}; found others.")
    if name not in keys or keys[name] != key.public_key():
        raise UserError(f"Expected {name!r} in {files.roster} with the public key of {files.key}. Correct one of them.")
    return key, keys


@dataclass
class SumRequests:
    """Passes the steps of one sum on to sites.

    Args:
        registry: reaches them.
        clients: the sites that were asked to train, by name.
        problems: why a site is no longer in the sum, by its name.
    """

    registry: SiteRegistry
    clients: Mapping[str, Client]
    problems: dict[str, str] = field(default_factory=dict)

    def ask(self, step: str, parts: Mapping[str, Parts]) -> dict[str, Parts]:
        """Sends sites a step, and returns the answers that came; both by the site's name."""
        messages: dict[str, Message] = {}
        for name, part in parts.items():
            client = self.clients[name]
            values = {"run": self.registry.run, "step": step, "client": client.id, "domain": client.domain}
            messages[name] = Message("sum", values, as_tensors(part))
        answers: dict[str, Parts] = {}
        for name, reply in self.registry.exchange(messages).items():
            if isinstance(reply, SiteError):
                self.problems[name] = str(reply)
            elif reply.kind != "summed" or reply.values["step"] != step:
                self.problems[name] = "was restarted, and so forgot the secure sum it was in"
            else:
                answers[name] = as_parts(reply.tensors)
        return answers


def summed_at_sites(
    registry: SiteRegistry, results: Mapping[Client, ClientResult], task: PhaseTask, like: State
) -> dict[Client, ClientResult]:
    """The results with the mean of all in place of the keys that each site sent; a site that is not in it has failed.

    Args:
        registry: reaches the sites.
        results: with each site's keys as its update.
        task: the phase.
        like: tensors such as each site would upload.
    """
    requests = SumRequests(registry, {client.name: client for client in results})
    adverts: dict[str, bytes] = {}
    for client, result in results.items():
        if result.failure:
            requests.problems[client.name] = result.failure
        else:
            adverts[client.name] = as_parts(result.update.state).get(CONTENT, b"")
    otherwise = "sent what no sum can be made of"
    mean: State = {}
    try:
        survivors, total = SumServer(registry.data.sites, numel(like) + 1).sum(adverts, requests.ask)
        (weighting,) = weightings(task.phase.strategy)
        weights = [sum_weight(results[requests.clients[name]], weighting) for name in survivors]
        # What each site weighs is known, so this shows wrong masks and shares, but not whose they are.
        if total[-1] != sum(weights):
            raise SumError("the sites' weights do not add up, so a mask or a share was wrong")
        mean = decode(total, like)
    except SumError as error:
        survivors = set()
        otherwise = f"got no secure sum: {error}"
    after: dict[Client, ClientResult] = {}
    for client, result in results.items():
        if client.name in survivors:
            after[client] = with_mean(result, mean)
        else:
            after[client] = ClientResult.of_failure(client, requests.problems.get(client.name, otherwise))
    return after


def as_tensors(parts: Parts) -> State:
    """Bytes as a message carries them."""
    return {name: torch.from_numpy(np.array(bytearray(content), np.uint8)) for name, content in parts.items()}


def as_parts(tensors: Mapping[str, Tensor]) -> dict[str, bytes]:
    """The bytes in a message."""
    return {name: value.numpy().tobytes() for name, value in tensors.items()}
