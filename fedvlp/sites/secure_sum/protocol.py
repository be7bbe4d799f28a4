"""The sum of all sites' numbers, from which the server learns nothing else; sites may drop out at any step.

Paper: Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning, CCS 2017: Figure 4, with
signed keys and the consistency check, for a server that may lie.

Each site adds one mask for every other site, from a key that the two share, and its own mask. Masks of pairs cancel.
The server removes the others with secrets that sites divide into shares (Shamir) and reveal once all agree on the
survivors: the seed of a survivor's own mask, or a dropout's key for masks of pairs, never both.

A sum begins with each site's advert (the paper's round 0); four steps follow (rounds 1 to 4), methods of ``SumSite``.

Deviations from the paper:
* Masks come from AES in counter mode.
* All that is signed, derived or encrypted is bound to a tag of the server's request, so that a server that asks sites
  for different things, or forwards keys of another sum, gets no sum.
"""

import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedvlp.core.aggregation.fixed_point import Numbers
from fedvlp.sites.wire import SiteError, SiteProblem
from fedvlp.training.secure_sum import sum_threshold

KEY_BYTES = 32  # of tags, public and private keys, seeds, and their shares
SIGNATURE_BYTES = 64
NONCE_BYTES = 12
BOX_BYTES = NONCE_BYTES + 2 * KEY_BYTES + 16  # the last of which authenticate it
ADVERT_BYTES = 3 * KEY_BYTES + SIGNATURE_BYTES
MASK_KEY = slice(KEY_BYTES, 2 * KEY_BYTES)  # in an advert; its tag is before it
BOX_KEY = slice(2 * KEY_BYTES, 3 * KEY_BYTES)

# What one site receives or answers: bytes, by the name of their sender or receiver.
Parts = Mapping[str, bytes]
# Sends sites a step, and returns the answers that came, both by the site's name.
Ask = Callable[[str, Mapping[str, Parts]], Mapping[str, Parts]]


class SumSite:
    """One site in one sum, whose secrets are only in memory; ``answer`` does each step once.

    Args:
        name: The site's name.
        key: The site's private key.
        roster: The public keys of all sites, which did not come from the server.
        about: The server's request in this round; equal at all sites.
        numbers: The site's numbers.
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
        self.steps = [self.share, self.mask, self.confirm, self.reveal]
        self.adverts: Parts = {}
        self.held: dict[str, bytes] = {}
        self.survivors: list[str] = []
        listed = [roster[each].public_bytes_raw().hex() for each in self.names]
        self.tag = hashlib.sha256(_said("tag", about, str(len(numbers)), *self.names, *listed)).digest()
        self.seed = os.urandom(KEY_BYTES)
        self.mask_key = X25519PrivateKey.generate()
        self.box_key = X25519PrivateKey.generate()
        publics = [each.public_key().public_bytes_raw() for each in (self.mask_key, self.box_key)]
        keys = self.tag + b"".join(publics)
        self.advert = keys + key.sign(_said("keys", keys, name))

    def answer(self, step: str, received: Parts) -> dict[str, bytes]:
        """Answer a step, or raise a SiteProblem if an answer would be wrong or unsafe; the sum is then over."""
        # No steps are left until there is an answer: nothing is tried twice, and nothing follows a refusal.
        steps, self.steps = self.steps, []
        if not steps or steps[0].__name__ != step:
            raise SiteProblem("is asked for a step of a secure sum twice, out of order, or after it refused one")
        answer = steps[0](received)
        self.steps = steps[1:]
        return answer

    def share(self, adverts: Parts) -> dict[str, bytes]:
        """Encrypt shares of the own secrets for each other site, after checking that every key is its site's."""
        self._check_enough(adverts, "sent keys")
        for name, advert in adverts.items():
            keys = advert[:-SIGNATURE_BYTES]
            if not self._has_signed(name, _said("keys", keys, name), advert[-SIGNATURE_BYTES:]):
                raise SiteProblem(f"got keys of {name[:99]!r} that are not signed by the key in its roster")
            if len(advert) != ADVERT_BYTES or advert[:KEY_BYTES] != self.tag:
                raise SiteProblem(f"was asked for something else than {name!r}, or their rosters differ")
        if adverts.get(self.name) != self.advert or len({each[MASK_KEY] for each in adverts.values()}) < len(adverts):
            raise SiteProblem("got a list of keys without its own, or with the same keys twice")
        self.adverts = adverts
        of_seed = _split(self.seed, self.threshold, len(self.names))
        of_key = _split(self.mask_key.private_bytes_raw(), self.threshold, len(self.names))
        boxes: dict[str, bytes] = {}
        for name, *shares in zip(self.names, of_seed, of_key, strict=True):
            if name == self.name:
                self.held[name] = b"".join(shares)
            elif name in adverts:
                nonce = os.urandom(NONCE_BYTES)
                about = _said("shares", self.tag, self.name, name)
                boxes[name] = nonce + self._box(name).encrypt(nonce, b"".join(shares), about)
        return boxes

    def mask(self, boxes: Parts) -> dict[str, bytes]:
        """Keep the shares, and mask the numbers with the own mask and one for each site that sent shares."""
        self._check_enough({self.name, *boxes}, "sent shares")
        for name, box in boxes.items():
            about = _said("shares", self.tag, name, self.name)
            try:
                self.held[name] = self._box(name).decrypt(box[:NONCE_BYTES], box[NONCE_BYTES:], about)
            except (InvalidTag, KeyError) as error:
                raise SiteProblem(f"got shares that {name[:99]!r} has not sent to it") from error
        publics = {name: self.adverts[name][MASK_KEY] for name in boxes}
        masks = _pair_masks(self.name, self.mask_key, publics, self.tag, len(self.numbers))
        masked = self.numbers + _stream(self.seed, len(self.numbers)) + masks
        return {self.name: masked.astype("<u8").tobytes()}

    def confirm(self, survivors: Parts) -> dict[str, bytes]:
        """Sign the survivors' names, so that the other sites see that all received the same names."""
        self._check_enough(survivors, "sent numbers")
        if self.name not in survivors or not survivors.keys() <= self.held.keys():
            raise SiteProblem("got a list of survivors that can't be")
        self.survivors = sorted(survivors)
        return {self.name: self.key.sign(_said("survivors", self.tag, *self.survivors))}

    def reveal(self, signatures: Parts) -> dict[str, bytes]:
        """Reveal one share of each site, once enough sites have confirmed the same survivors."""
        said = _said("survivors", self.tag, *self.survivors)
        signed = [name for name, signature in signatures.items() if self._has_signed(name, said, signature)]
        self._check_enough(set(signed) & set(self.survivors), "were told of the same survivors")
        # One of the two for each site: with both the server could remove all its masks.
        shares: dict[str, bytes] = {}
        for name, both in self.held.items():
            shares[name] = both[:KEY_BYTES] if name in self.survivors else both[KEY_BYTES:]
        return shares

    def _check_enough(self, names: Collection[str], what: str) -> None:
        if len(names) < self.threshold:
            raise SiteProblem(f"is told of {len(names)} sites that {what}, and {self.threshold} are needed")

    def _has_signed(self, name: str, said: bytes, signature: bytes) -> bool:
        try:
            self.roster[name].verify(signature, said)
        except (KeyError, InvalidSignature):
            return False
        return True

    def _box(self, name: str) -> AESGCM:
        return AESGCM(_pair_key(b"box", self.box_key, self.adverts[name][BOX_KEY], self.tag))


def sum_of_sites(
    names: Sequence[str], length: int, adverts: Mapping[str, Parts], ask: Ask, min_survivors: int = 0
) -> tuple[set[str], Numbers]:
    """Compute the server's part: the survivors, and the sum of their numbers modulo 2^64; wrong if any share is wrong.

    Args:
        names: Names of all sites, also those that are not there.
        length: Count of each site's numbers.
        adverts: Each site's advert under its name.
        ask: Sends sites a step.
        min_survivors: Sites that the sum must include. With fewer it ends before any site reveals its part.

    Raises:
        SiteError: If too few sites answer a step.
    """
    threshold = sum_threshold(len(names))
    keys = _single(adverts, ADVERT_BYTES, threshold, "sent keys")
    boxes = ask("share", dict.fromkeys(keys, keys))
    boxes = _usable(boxes, lambda name: dict.fromkeys(keys.keys() - {name}, BOX_BYTES), threshold, "sent shares")
    for_each: dict[str, Parts] = {}
    for to in boxes:
        for_each[to] = {name: boxes[name][to] for name in boxes if name != to}
    vectors = _single(ask("mask", for_each), 8 * length, max(threshold, min_survivors), "sent numbers")
    confirmed = ask("confirm", dict.fromkeys(vectors, dict.fromkeys(vectors, b"")))
    signatures = _single(confirmed, SIGNATURE_BYTES, threshold, "confirmed who survived")
    shares = ask("reveal", dict.fromkeys(signatures, signatures))
    shares = _usable(shares, lambda name: dict.fromkeys(boxes, KEY_BYTES), threshold, "revealed shares")
    total = np.zeros(length, np.uint64)
    for vector in vectors.values():
        total = total + np.frombuffer(vector, "<u8")
    publics = {name: keys[name][MASK_KEY] for name in vectors}
    for name in boxes:
        held = {sorted(names).index(holder) + 1: shares[holder][name] for holder in shares}
        secret = _combine(list(held.items())[:threshold])
        if name in vectors:
            total = total - _stream(secret, length)
        else:
            # The dropout's masks would have cancelled those of the survivors.
            key = X25519PrivateKey.from_private_bytes(secret)
            total = total + _pair_masks(name, key, publics, keys[name][:KEY_BYTES], length)
    return set(vectors), total


def _single(answers: Mapping[str, Parts], size: int, threshold: int, what: str) -> dict[str, bytes]:
    """Keep the answers in which a site sends one part, its own."""
    usable = _usable(answers, lambda name: {name: size}, threshold, what)
    return {name: answer[name] for name, answer in usable.items()}


def _usable(
    answers: Mapping[str, Parts], sizes: Callable[[str], Mapping[str, int]], threshold: int, what: str
) -> dict[str, Parts]:
    """Keep the answers with parts of the right sizes; a site that sent other sizes has dropped out."""
    usable: dict[str, Parts] = {}
    for name, answer in answers.items():
        if {part: len(content) for part, content in answer.items()} == sizes(name):
            usable[name] = answer
    if len(usable) < threshold:
        raise SiteError(f"got no secure sum: {len(usable)} sites {what}, and {threshold} are needed")
    return usable


def _said(use: str, about: bytes, *words: str) -> bytes:
    """Encode what is signed or authenticated, so that no two uses and contents have the same bytes."""
    return json.dumps([use, about.hex(), *words]).encode()


def _pair_key(use: bytes, own: X25519PrivateKey, peer: bytes, tag: bytes) -> bytes:
    """Derive the key that two sites share for one use in one sum: X25519, then HKDF."""
    both = b"".join(sorted([own.public_key().public_bytes_raw(), peer]))
    secret = own.exchange(X25519PublicKey.from_public_bytes(peer))
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=use + tag + both).derive(secret)


def _stream(key: bytes, length: int) -> Numbers:
    """Make pseudorandom numbers from a key that is used once: AES-256 in counter mode."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * length))
    return np.frombuffer(stream, "<u8").astype(np.uint64)


def _pair_masks(name: str, key: X25519PrivateKey, publics: Parts, tag: bytes, length: int) -> Numbers:
    """Add up a site's masks for its peers: positive for later names, negative for earlier ones, so that all cancel."""
    total = np.zeros(length, np.uint64)
    for peer, public in publics.items():
        mask = _stream(_pair_key(b"mask", key, public, tag), length)
        total = total + mask if name < peer else total - mask
    return total


def _split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Divide 32 bytes into shares, by Shamir's scheme for each half of 16 bytes."""
    halves = [Shamir.split(threshold, count, half, ssss=False) for half in (secret[:16], secret[16:])]
    return [first[1] + second[1] for first, second in zip(*halves, strict=True)]


def _combine(shares: Sequence[tuple[int, bytes]]) -> bytes:
    """Restore the secret from as many shares as the threshold, each with its place from 1."""
    halves = (slice(16), slice(16, 32))
    return b"".join(Shamir.combine([(place, share[half]) for place, share in shares], ssss=False) for half in halves)
