"""Secure sum of all sites' values: the server learns only the sum, and sites may drop out at any step.

Paper: Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning, CCS 2017: Figure 4, with
signed keys and the consistency check that protect against a malicious server.

Each site adds to its values one mask per other site, from a key shared by the pair, and its own mask. Pair masks cancel
in the sum. Sites split their secrets into shares (Shamir), and reveal shares once all agree on the survivors: the seed
of a survivor's own mask, or a dropout's key for pair masks, never both. The server then removes the remaining masks.

A sum starts with each site's advert (the paper's round 0). Four steps follow (rounds 1 to 4), methods of ``SumSite``.

Deviations from the paper:
* Masks: fedvlp generates them with AES in counter mode.
* Binding: every signature, key and ciphertext includes a tag of the server's request. A server that sends sites
  different requests, or forwards keys of another sum, therefore gets no sum.
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
BOX_BYTES = NONCE_BYTES + 2 * KEY_BYTES + 16  # the last 16 bytes authenticate the box
ADVERT_BYTES = 3 * KEY_BYTES + SIGNATURE_BYTES
MASK_KEY = slice(KEY_BYTES, 2 * KEY_BYTES)  # in an advert, after the tag
BOX_KEY = slice(2 * KEY_BYTES, 3 * KEY_BYTES)

# Bytes that one site receives or sends, by the name of their sender or receiver.
Parts = Mapping[str, bytes]
# Sends a step to sites, and returns the answers received, both by the site's name.
Ask = Callable[[str, Mapping[str, Parts]], Mapping[str, Parts]]


class SumSite:
    """One site in one sum. Its secrets exist only in memory, and ``answer`` performs each step once.

    Args:
        name: The site's name.
        key: The site's private key.
        roster: The public keys of all sites, obtained independently of the server.
        about: Digest of the server's request in this round; equal at all sites.
        numbers: The site's values in fixed point.
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
        listed = [roster[peer].public_bytes_raw().hex() for peer in self.names]
        self.tag = hashlib.sha256(_encode("tag", about, str(len(numbers)), *self.names, *listed)).digest()
        self.seed = os.urandom(KEY_BYTES)
        self.mask_key = X25519PrivateKey.generate()
        self.box_key = X25519PrivateKey.generate()
        publics = [private.public_key().public_bytes_raw() for private in (self.mask_key, self.box_key)]
        keys = self.tag + b"".join(publics)
        self.advert = keys + key.sign(_encode("keys", keys, name))

    def answer(self, step: str, received: Parts) -> dict[str, bytes]:
        """Answer a step, or end the sum with a SiteProblem if an answer would be wrong or unsafe."""
        # Cleared until there is an answer, so that no step is repeated and none follows a refusal.
        steps, self.steps = self.steps, []
        if not steps or steps[0].__name__ != step:
            raise SiteProblem("is asked for a step of a secure sum twice, out of order, or after a refusal")
        answer = steps[0](received)
        self.steps = steps[1:]
        return answer

    def share(self, adverts: Parts) -> dict[str, bytes]:
        """Check the signature of every key, and encrypt shares of the site's secrets for each other site."""
        self._check_enough(adverts, "sent keys")
        for name, advert in adverts.items():
            keys = advert[:-SIGNATURE_BYTES]
            if not self._has_signed(name, _encode("keys", keys, name), advert[-SIGNATURE_BYTES:]):
                raise SiteProblem(f"got keys of {name[:99]!r} that are not signed by the key in its roster")
            if len(advert) != ADVERT_BYTES or advert[:KEY_BYTES] != self.tag:
                raise SiteProblem(f"got a different request than {name!r}, or their rosters differ")
        mask_keys = {advert[MASK_KEY] for advert in adverts.values()}
        if adverts.get(self.name) != self.advert or len(mask_keys) < len(adverts):
            raise SiteProblem("got a list of keys without its own, or with the same keys twice")
        self.adverts = adverts
        seed_shares = _split(self.seed, self.threshold, len(self.names))
        key_shares = _split(self.mask_key.private_bytes_raw(), self.threshold, len(self.names))
        boxes: dict[str, bytes] = {}
        for name, *shares in zip(self.names, seed_shares, key_shares, strict=True):
            if name == self.name:
                self.held[name] = b"".join(shares)
            elif name in adverts:
                nonce = os.urandom(NONCE_BYTES)
                about = _encode("shares", self.tag, self.name, name)
                boxes[name] = nonce + self._box(name).encrypt(nonce, b"".join(shares), about)
        return boxes

    def mask(self, boxes: Parts) -> dict[str, bytes]:
        """Store the received shares, and mask the values with the site's mask and one per site that sent shares."""
        self._check_enough({self.name, *boxes}, "sent shares")
        for name, box in boxes.items():
            about = _encode("shares", self.tag, name, self.name)
            try:
                self.held[name] = self._box(name).decrypt(box[:NONCE_BYTES], box[NONCE_BYTES:], about)
            except (InvalidTag, KeyError) as error:
                raise SiteProblem(f"got shares that {name[:99]!r} did not send to it") from error
        publics = {name: self.adverts[name][MASK_KEY] for name in boxes}
        masks = _pair_masks(self.name, self.mask_key, publics, self.tag, len(self.numbers))
        masked = self.numbers + _stream(self.seed, len(self.numbers)) + masks
        return {self.name: masked.astype("<u8").tobytes()}

    def confirm(self, survivors: Parts) -> dict[str, bytes]:
        """Sign the survivors' names, so that the other sites can check that all received the same names."""
        self._check_enough(survivors, "sent masked values")
        if self.name not in survivors or not survivors.keys() <= self.held.keys():
            raise SiteProblem("got an impossible list of survivors")
        self.survivors = sorted(survivors)
        return {self.name: self.key.sign(_encode("survivors", self.tag, *self.survivors))}

    def reveal(self, signatures: Parts) -> dict[str, bytes]:
        """Reveal one share of each site, once enough sites have confirmed the same survivors."""
        content = _encode("survivors", self.tag, *self.survivors)
        signed = [name for name, signature in signatures.items() if self._has_signed(name, content, signature)]
        self._check_enough(set(signed) & set(self.survivors), "confirmed the same survivors")
        # One of the two shares per site: with both, the server could remove all its masks.
        shares: dict[str, bytes] = {}
        for name, both in self.held.items():
            shares[name] = both[:KEY_BYTES] if name in self.survivors else both[KEY_BYTES:]
        return shares

    def _check_enough(self, names: Collection[str], action: str) -> None:
        if len(names) < self.threshold:
            reason = f"only {len(names)} sites {action}, and {self.threshold} are needed"
            raise SiteProblem(f"stops the secure sum: {reason}")

    def _has_signed(self, name: str, content: bytes, signature: bytes) -> bool:
        try:
            self.roster[name].verify(signature, content)
        except (KeyError, InvalidSignature):
            return False
        return True

    def _box(self, name: str) -> AESGCM:
        return AESGCM(_pair_key(b"box", self.box_key, self.adverts[name][BOX_KEY], self.tag))


def sum_sites(
    names: Sequence[str], length: int, adverts: Mapping[str, Parts], ask: Ask, min_survivors: int = 0
) -> tuple[set[str], Numbers]:
    """Perform the server's part, and return the survivors and the sum of their values modulo 2^64.

    The sum is wrong if any share is wrong.

    Args:
        names: Names of all sites, including those that are not connected.
        length: Number of values of each site.
        adverts: Each site's advert under its name.
        ask: Function that sends a step to sites.
        min_survivors: Minimum number of sites in the sum. With fewer, the sum ends before any site reveals its part.

    Raises:
        SiteError: If too few sites answer a step.
    """
    threshold = sum_threshold(len(names))
    keys = _single(adverts, ADVERT_BYTES, threshold, "sent keys")
    boxes = ask("share", dict.fromkeys(keys, keys))
    boxes = _usable(boxes, lambda name: dict.fromkeys(keys.keys() - {name}, BOX_BYTES), threshold, "sent shares")
    forwarded: dict[str, Parts] = {}
    for receiver in boxes:
        forwarded[receiver] = {name: boxes[name][receiver] for name in boxes if name != receiver}
    vectors = _single(ask("mask", forwarded), 8 * length, max(threshold, min_survivors), "sent masked values")
    confirmed = ask("confirm", dict.fromkeys(vectors, dict.fromkeys(vectors, b"")))
    signatures = _single(confirmed, SIGNATURE_BYTES, threshold, "confirmed the survivors")
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
            # The dropout's pair masks would have cancelled the survivors' pair masks.
            key = X25519PrivateKey.from_private_bytes(secret)
            total = total + _pair_masks(name, key, publics, keys[name][:KEY_BYTES], length)
    return set(vectors), total


def _single(answers: Mapping[str, Parts], size: int, threshold: int, action: str) -> dict[str, bytes]:
    usable = _usable(answers, lambda name: {name: size}, threshold, action)
    return {name: answer[name] for name, answer in usable.items()}


def _usable(
    answers: Mapping[str, Parts], sizes: Callable[[str], Mapping[str, int]], threshold: int, action: str
) -> dict[str, Parts]:
    """Filter the answers with parts of the right sizes; a site that sent other sizes counts as dropped out."""
    usable: dict[str, Parts] = {}
    for name, answer in answers.items():
        if {part: len(content) for part, content in answer.items()} == sizes(name):
            usable[name] = answer
    if len(usable) < threshold:
        raise SiteError(f"got no secure sum: only {len(usable)} sites {action}, and {threshold} are needed")
    return usable


def _encode(use: str, about: bytes, *words: str) -> bytes:
    """Encode content to be signed or authenticated, so that different uses never have the same bytes."""
    return json.dumps([use, about.hex(), *words]).encode()


def _pair_key(use: bytes, own: X25519PrivateKey, peer: bytes, tag: bytes) -> bytes:
    """Derive the key that two sites share for one use in one sum (X25519, then HKDF)."""
    both = b"".join(sorted([own.public_key().public_bytes_raw(), peer]))
    secret = own.exchange(X25519PublicKey.from_public_bytes(peer))
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=use + tag + both).derive(secret)


def _stream(key: bytes, length: int) -> Numbers:
    """Generate pseudorandom numbers from a key that is used once (AES-256 in counter mode)."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * length))
    return np.frombuffer(stream, "<u8").astype(np.uint64)


def _pair_masks(name: str, key: X25519PrivateKey, publics: Parts, tag: bytes, length: int) -> Numbers:
    """Sum a site's pair masks: positive for later names, negative for earlier names, so that all cancel."""
    total = np.zeros(length, np.uint64)
    for peer, public in publics.items():
        mask = _stream(_pair_key(b"mask", key, public, tag), length)
        total = total + mask if name < peer else total - mask
    return total


def _split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Divide 32 bytes into shares with Shamir's scheme, which handles halves of 16 bytes."""
    halves = [Shamir.split(threshold, count, half, ssss=False) for half in (secret[:16], secret[16:])]
    return [first[1] + second[1] for first, second in zip(*halves, strict=True)]


def _combine(shares: Sequence[tuple[int, bytes]]) -> bytes:
    halves = (slice(16), slice(16, 32))
    return b"".join(Shamir.combine([(index, share[half]) for index, share in shares], ssss=False) for half in halves)
