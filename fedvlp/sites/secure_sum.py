"""The sum of all sites' numbers, of which the server learns nothing else; sites may drop out at any step.

Paper: Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning, CCS 2017: Figure 4, with
signed keys and the consistency check, for a server that may lie. Pure: no files and no network, bytes in and bytes out.

Each site adds one mask for every other site, from a key that the two share, and one of its own. Masks of pairs cancel;
those left over are taken off with keys that sites have divided into shares (Shamir) and reveal to the server once all
agree on who survived: of a survivor its own mask's seed, of a dropout its key for masks of pairs, never both.

Each site first has an advert: the sum's tag, its two public keys and its signature (the paper's round 0). Then it is
asked for four steps (rounds 1 to 4):

    ``share``: receives all adverts; answers for each other site its shares, encrypted.
    ``mask``: receives the shares that are for it; answers its masked numbers.
    ``confirm``: receives the names of those whose numbers came; answers its signature of them.
    ``reveal``: receives these signatures; answers one share of a secret of each site.

Departures: masks are of AES in counter mode; all that is signed, derived or encrypted is bound to a ``tag`` of what the
server asked for, so that a server that asks sites for different things, or again for an old round, gets no sum.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedvlp.core.aggregation.fixed_point import Numbers
from fedvlp.sites.wire import SiteProblem
from fedvlp.training.secure_sum import sum_threshold

STEPS = ("share", "mask", "confirm", "reveal")
CONTENT = "content"
"""Names the bytes in a message that has no more than one; in others they are named by the site that they concern."""
KEY_BYTES = 32  # of tags, public and private keys, seeds, and their shares
SIGNATURE_BYTES = 64
NONCE_BYTES = 12
BOX_BYTES = NONCE_BYTES + 2 * KEY_BYTES + 16  # the last of which authenticate it
ADVERT_BYTES = 3 * KEY_BYTES + SIGNATURE_BYTES

# What goes from or to one site: bytes by the name of a site, or of the content.
Parts = Mapping[str, bytes]
# Sends sites a step, and returns the answers that came, both by the site's name.
Ask = Callable[[str, Mapping[str, Parts]], Mapping[str, Parts]]


class SumError(Exception):
    """Why there is no sum, as a sentence without its point."""


class SumSite:
    """One site in one sum. Its secrets are in memory alone, and every step is answered once.

    Args:
        name: the site's own.
        key: with which it signs.
        roster: the public keys of all sites, which no server may have changed.
        about: what the server asked of the site in this round; equal at all sites.
        numbers: what is summed.

    Attributes:
        advert: the site's keys for this sum, which begin it.
    """

    def __init__(
        self, name: str, key: Ed25519PrivateKey, roster: Mapping[str, Ed25519PublicKey], about: bytes, numbers: Numbers
    ) -> None:
        self.name = name
        self.key = key
        self.roster = roster
        self.names = sorted(roster)
        self.threshold = sum_threshold(len(roster))
        self.numbers = numbers
        self.answered = 0
        self.peers: dict[str, tuple[bytes, bytes]] = {}
        self.held: dict[str, bytes] = {}
        self.survivors: list[str] = []
        listed = [(each, roster[each].public_bytes_raw().hex()) for each in self.names]
        self.tag = hashlib.sha256(json.dumps([about.hex(), len(numbers), listed]).encode()).digest()
        self.seed = os.urandom(KEY_BYTES)
        self.mask_key = X25519PrivateKey.generate()
        self.box_key = X25519PrivateKey.generate()
        keys = self.tag + _public(self.mask_key) + _public(self.box_key)
        self.advert = keys + key.sign(_about_keys(name, keys))

    def answer(self, step: str, received: Parts) -> dict[str, bytes]:
        """The answer to a step; a SiteProblem, after which the sum is over here, if it would be wrong or unsafe."""
        place = self.answered
        # Until there is an answer: nothing is tried twice, and nothing follows a refusal.
        self.answered = len(STEPS)
        if STEPS[place : place + 1] != (step,):
            raise SiteProblem("is asked for a step of a secure sum twice, out of order, or after it refused one")
        answers = {"share": self._share, "mask": self._mask, "confirm": self._confirm, "reveal": self._reveal}
        answer = answers[step](received)
        self.answered = place + 1
        return answer

    def _share(self, adverts: Parts) -> dict[str, bytes]:
        self._check_enough(adverts, "sent keys")
        for name, advert in adverts.items():
            keys = advert[:-SIGNATURE_BYTES]
            if not self._has_signed(name, _about_keys(name, keys), advert[-SIGNATURE_BYTES:]):
                raise SiteProblem(f"got keys of {name[:99]!r} that are not signed by the key in its roster")
            if len(advert) != ADVERT_BYTES or advert[:KEY_BYTES] != self.tag:
                raise SiteProblem(f"was asked for something else than {name!r}, or their rosters differ")
        self.peers = {name: _public_keys(advert) for name, advert in adverts.items()}
        if adverts.get(self.name) != self.advert or len(set(self.peers.values())) < len(adverts):
            raise SiteProblem("got a list of keys without its own, or with the same keys twice")
        of_seeds = _split(self.seed, self.threshold, len(self.names))
        of_keys = _split(self.mask_key.private_bytes_raw(), self.threshold, len(self.names))
        boxes: dict[str, bytes] = {}
        for name, seed_share, key_share in zip(self.names, of_seeds, of_keys, strict=True):
            if name == self.name:
                self.held[name] = seed_share + key_share
            elif name in adverts:
                nonce = os.urandom(NONCE_BYTES)
                boxes[name] = nonce + self._box(name).encrypt(nonce, seed_share + key_share, _from_to(self.name, name))
        return boxes

    def _mask(self, boxes: Parts) -> dict[str, bytes]:
        self._check_enough({self.name, *boxes}, "sent shares")
        for name, box in boxes.items():
            try:
                opened = self._box(name).decrypt(box[:NONCE_BYTES], box[NONCE_BYTES:], _from_to(name, self.name))
            except (InvalidTag, KeyError) as error:
                raise SiteProblem(f"got shares that {name[:99]!r} has not sent to it") from error
            self.held[name] = opened
        publics = {name: self.peers[name][0] for name in boxes}
        masked = self.numbers + _stream(self.seed, len(self.numbers))
        masked = masked + _pair_masks(self.name, self.mask_key, publics, self.tag, len(self.numbers))
        return {CONTENT: masked.astype("<u8").tobytes()}

    def _confirm(self, survivors: Parts) -> dict[str, bytes]:
        self._check_enough(survivors, "sent numbers")
        if self.name not in survivors or not survivors.keys() <= self.held.keys():
            raise SiteProblem("got a list of survivors that can't be")
        self.survivors = sorted(survivors)
        return {CONTENT: self.key.sign(_about_survivors(self.survivors, self.tag))}

    def _reveal(self, signatures: Parts) -> dict[str, bytes]:
        said = _about_survivors(self.survivors, self.tag)
        agreeing = [
            name
            for name, signature in signatures.items()
            if name in self.survivors and self._has_signed(name, said, signature)
        ]
        self._check_enough(agreeing, "were told of the same survivors")
        # Of each site one kind: with both the server could take off all its masks.
        shares: dict[str, bytes] = {}
        for name, both in self.held.items():
            shares[name] = both[:KEY_BYTES] if name in self.survivors else both[KEY_BYTES:]
        return shares

    def _check_enough(self, names: Iterable[str], what: str) -> None:
        if len(set(names)) < self.threshold:
            raise SiteProblem(f"is told of {len(set(names))} sites that {what}, and {self.threshold} are needed")

    def _has_signed(self, name: str, said: bytes, signature: bytes) -> bool:
        try:
            self.roster[name].verify(signature, said)
        except (KeyError, InvalidSignature):
            return False
        return True

    def _box(self, name: str) -> AESGCM:
        return AESGCM(_pair_key(b"box", self.box_key, self.peers[name][1], self.tag))


class SumServer:
    """Passes messages on and learns the sum; until the sites reveal shares it sees no secret.

    Args:
        names: of all sites, also those that are not there.
        length: how many numbers each site has.
    """

    def __init__(self, names: Sequence[str], length: int) -> None:
        self.names = sorted(names)
        self.threshold = sum_threshold(len(names))
        self.length = length

    def sum(self, adverts: Mapping[str, bytes], ask: Ask) -> tuple[set[str], Numbers]:
        """The survivors, and the sum of their numbers modulo 2^64.

        Raises:
            SumError: if too few sites answer a step, or shares give another key than was advertised.
        """
        sent = {name: {CONTENT: advert} for name, advert in adverts.items()}
        keys = self._contents(sent, ADVERT_BYTES, "sent keys")
        boxes = ask("share", dict.fromkeys(keys, keys))
        boxes = self._usable(boxes, lambda name: dict.fromkeys(keys.keys() - {name}, BOX_BYTES), "sent shares")
        to_each = {to: {name: boxes[name][to] for name in boxes if name != to} for to in boxes}
        vectors = self._contents(ask("mask", to_each), 8 * self.length, "sent numbers")
        survivors = dict.fromkeys(vectors, b"")
        confirmed = ask("confirm", dict.fromkeys(vectors, survivors))
        signatures = self._contents(confirmed, SIGNATURE_BYTES, "confirmed who survived")
        shares = ask("reveal", dict.fromkeys(signatures, signatures))
        shares = self._usable(shares, lambda name: dict.fromkeys(boxes, KEY_BYTES), "revealed shares")
        return set(vectors), self._unmasked(vectors, keys, shares)

    def _unmasked(
        self, vectors: Mapping[str, bytes], adverts: Mapping[str, bytes], shares: Mapping[str, Parts]
    ) -> Numbers:
        """The sum of masked numbers without the masks that are left over."""
        total = np.zeros(self.length, np.uint64)
        for vector in vectors.values():
            total = total + np.frombuffer(vector, "<u8")
        tag = next(iter(adverts.values()))[:KEY_BYTES]
        publics = {name: _public_keys(adverts[name])[0] for name in vectors}
        places = {name: place for place, name in enumerate(self.names, 1)}
        holders = list(shares)[: self.threshold]
        # Each holds a share of every site that sent shares.
        for name in shares[holders[0]]:
            secret = _combine([(places[holder], shares[holder][name]) for holder in holders])
            if name in vectors:
                total = total - _stream(secret, self.length)
                continue
            key = X25519PrivateKey.from_private_bytes(secret)
            if _public(key) != _public_keys(adverts[name])[0]:
                raise SumError(f"the shares of the key of {name!r}, which dropped out, give another key")
            # Its own masks of pairs would have cancelled those of the survivors.
            total = total + _pair_masks(name, key, publics, tag, self.length)
        return total

    def _contents(self, answers: Mapping[str, Parts], size: int, what: str) -> dict[str, bytes]:
        usable = self._usable(answers, lambda name: {CONTENT: size}, what)
        return {name: answer[CONTENT] for name, answer in usable.items()}

    def _usable(
        self, answers: Mapping[str, Parts], sizes: Callable[[str], Mapping[str, int]], what: str
    ) -> dict[str, Parts]:
        """The answers with parts of the right sizes; whoever sent another has dropped out."""
        usable: dict[str, Parts] = {}
        for name, answer in answers.items():
            if {part: len(content) for part, content in answer.items()} == sizes(name):
                usable[name] = answer
        if len(usable) < self.threshold:
            raise SumError(f"{len(usable)} sites {what}, and {self.threshold} are needed")
        return usable


def _public(key: X25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def _public_keys(advert: bytes) -> tuple[bytes, bytes]:
    """Of an advert the public keys for masks and for boxes."""
    return advert[KEY_BYTES : 2 * KEY_BYTES], advert[2 * KEY_BYTES : 3 * KEY_BYTES]


def _about_keys(name: str, keys: bytes) -> bytes:
    return b"keys" + keys + name.encode()


def _about_survivors(names: Sequence[str], tag: bytes) -> bytes:
    return b"survivors" + tag + json.dumps(names).encode()


def _from_to(source: str, target: str) -> bytes:
    return json.dumps([source, target]).encode()


def _pair_key(use: bytes, own: X25519PrivateKey, peer: bytes, tag: bytes) -> bytes:
    """The key that two sites have in common for one use in one sum: X25519, then HKDF."""
    both = b"".join(sorted([_public(own), peer]))
    secret = own.exchange(X25519PublicKey.from_public_bytes(peer))
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=use + tag + both).derive(secret)


def _stream(key: bytes, length: int) -> Numbers:
    """Numbers that look random to whoever lacks the key, which serves once: AES-256 in counter mode."""
    stream = Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(8 * length))
    return np.frombuffer(stream, "<u8").astype(np.uint64)


def _pair_masks(name: str, key: X25519PrivateKey, publics: Parts, tag: bytes, length: int) -> Numbers:
    """What a site adds for its peers: a mask for those after it and its negative for those before, so all cancel."""
    total = np.zeros(length, np.uint64)
    for peer, public in publics.items():
        mask = _stream(_pair_key(b"mask", key, public, tag), length)
        total = total + mask if name < peer else total - mask
    return total


def _split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Shares of 32 bytes, of which so many as the threshold give the secret and fewer tell nothing of it."""
    # Shamir's are of 16 bytes; the share of place k is in place k - 1 of both.
    first = Shamir.split(threshold, count, secret[:16], ssss=False)
    second = Shamir.split(threshold, count, secret[16:], ssss=False)
    return [one[1] + other[1] for one, other in zip(first, second, strict=True)]


def _combine(shares: Sequence[tuple[int, bytes]]) -> bytes:
    """The secret of as many shares as the threshold, each with its place from 1."""
    first = Shamir.combine([(place, share[:16]) for place, share in shares], ssss=False)
    return first + Shamir.combine([(place, share[16:]) for place, share in shares], ssss=False)
