"""The secure sum without network: it is the plain sum whoever drops out, and a server that lies gets none."""

from contextlib import suppress

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")
pytest.importorskip("Crypto", reason="needs the extra `flower`")
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedvlp.sites.secure_sum import protocol
from fedvlp.sites.secure_sum.protocol import ADVERT_BYTES, SumSite, sum_sites
from fedvlp.sites.wire import SiteError, SiteProblem

LENGTH = 30
STEPS = ("share", "mask", "confirm", "reveal")
KEYS = {name: Ed25519PrivateKey.generate() for name in ("ash", "birch", "cedar", "elm", "fir")}


class Parties:
    """A server and so many sites in one sum, each asked in turn.

    Args:
        count: number of sites.
        drops: from a step to the sites that are silent from it on; ``advertise`` comes before all steps.
        lies: from a step to what the server really sends a site in it, from its name and what it should get.
        about: what the server asked each site for.
        length: how many numbers.
    """

    def __init__(self, count=5, drops=(), lies=(), about=b"round 3", length=LENGTH):
        self.names = list(KEYS)[:count]
        self.drops = dict(drops)
        self.lies = dict(lies)
        self.refusals = {}
        self.sent = {step: {} for step in STEPS}
        generator = np.random.default_rng(7)
        self.numbers = {name: generator.integers(-(2**52), 2**52, length).view(np.uint64) for name in self.names}
        self.roster = {name: KEYS[name].public_key() for name in self.names}
        self.sites = {name: self.site(name, about) for name in self.names}
        self.length = length
        self.silent = set(self.drops.get("advertise", ()))

    def site(self, name, about):
        return SumSite(name, KEYS[name], self.roster, about, self.numbers[name])

    def adverts(self):
        return {name: {name: site.advert} for name, site in self.sites.items() if name not in self.silent}

    def ask(self, step, parts):
        self.silent |= set(self.drops.get(step, ()))
        lie = self.lies.get(step, lambda name, part: part)
        for name in sorted(parts.keys() - self.silent):
            try:
                self.sent[step][name] = self.sites[name].answer(step, lie(name, parts[name]))
            except SiteProblem as problem:
                self.refusals[name] = str(problem)
        return self.sent[step]

    def sum(self, ask=None):
        return sum_sites(self.names, self.length, self.adverts(), ask or self.ask)

    def shares_of(self, name):
        """Places and shares of a site's secret, of all that were revealed."""
        places = {each: place for place, each in enumerate(self.names, 1)}
        return [(places[holder], shares[name]) for holder, shares in self.sent["reveal"].items()]

    def plain_sum(self, names):
        return sum((self.numbers[name] for name in names), np.zeros(LENGTH, np.uint64))


def refused(parties, sites, reason):
    """The server gets no sum, and each of the sites refuses for the reason; returns all that they have revealed."""
    with pytest.raises(SiteError):
        parties.sum()
    assert parties.refusals.keys() >= set(sites)
    for name in sites:
        assert reason in parties.refusals[name]
    return parties.sent["reveal"]


@pytest.mark.parametrize(("count", "step"), [(3, "never"), *((5, step) for step in ("advertise", *STEPS, "never"))])
def test_the_sum_is_the_plain_one_to_the_bit_whoever_drops_out_at_whatever_step(count, step):
    lost = {3: [], 5: ["birch", "fir"]}[count]
    parties = Parties(count, {step: lost})
    survivors, total = parties.sum()
    # Whoever falls silent after its numbers came is in the sum.
    gone = set(lost) if step in ("advertise", "share", "mask") else set()
    assert survivors == set(parties.names) - gone
    assert np.array_equal(total, parties.plain_sum(survivors))
    assert not parties.refusals


@pytest.mark.parametrize("step", ["advertise", *STEPS])
def test_below_the_threshold_there_is_no_sum(step):
    parties = Parties(5, {step: ["ash", "birch", "fir"]})
    with pytest.raises(SiteError, match=r"2 sites .*, and 3 are needed"):
        parties.sum()


def test_whoever_sends_bytes_of_another_size_has_dropped_out():
    parties = Parties(5)
    usual = parties.ask

    def ask(step, parts):
        answers = dict(usual(step, parts))
        if step == "mask":
            answers["cedar"] = {"cedar": answers["cedar"]["cedar"][:-1]}
        return answers

    survivors, total = parties.sum(ask)
    assert survivors == {"ash", "birch", "elm", "fir"}
    assert np.array_equal(total, parties.plain_sum(survivors))


# A server that lies.


def test_a_server_that_tells_sites_of_different_survivors_gets_one_kind_of_secret():
    """Else it would get the seed of cedar's own mask from some and its key from others, and so its numbers."""

    def lie(name, survivors):
        return survivors if name in ("ash", "cedar") else {each: b"" for each in survivors if each != "cedar"}

    parties = Parties(5, lies={"confirm": lie})
    parties.sum()
    assert parties.refusals.keys() == {"ash", "cedar"}
    for reason in parties.refusals.values():
        assert "only 2 sites confirmed the same survivors, and 3 are needed" in reason
    shares = parties.shares_of("cedar")
    assert len(shares) == 3
    assert protocol._combine(shares) == parties.sites["cedar"].mask_key.private_bytes_raw()


def test_a_server_that_names_too_few_survivors_gets_no_signature():
    """Else it could ask for the sum of two."""
    parties = Parties(5, lies={"confirm": lambda name, survivors: {"ash": b"", "birch": b""}})
    assert not refused(parties, KEYS.keys() & {"ash", "elm"}, "only 2 sites sent masked values, and 3 are needed")


@pytest.mark.parametrize("names", [("birch", "cedar", "elm"), ("ash", "birch", "cedar", "yew")])
def test_a_list_of_survivors_without_the_site_or_with_a_stranger_is_refused(names):
    lie = dict.fromkeys(names, b"")
    parties = Parties(5, lies={"confirm": lambda name, survivors: lie if name == "ash" else survivors})
    parties.sum()
    assert parties.refusals == {"ash": "got an impossible list of survivors"}


def own_keys(parties):
    """The server's own keys in the advert of a site, with the signature of the site's."""
    advert = parties.sites["birch"].advert
    return {"birch": advert[:32] + Parties(5).sites["birch"].advert[32:96] + advert[96:]}


def stranger(parties):
    key = Ed25519PrivateKey.generate()
    return {"yew": SumSite("yew", key, {"yew": key.public_key()}, b"", parties.numbers["ash"]).advert}


def copied_keys(parties):
    """The keys of another site, signed by the one that copied them."""
    keys = parties.sites["birch"].advert[:96]
    copied = keys + KEYS["elm"].sign(protocol._encode("keys", keys, "elm"))
    assert len(copied) == ADVERT_BYTES
    return {"elm": copied}


def other_roster(parties):
    roster = {**parties.roster, "yew": Ed25519PrivateKey.generate().public_key()}
    parties.sites["elm"] = SumSite("elm", KEYS["elm"], roster, b"round 3", parties.numbers["elm"])
    return {}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (own_keys, "'birch' that are not signed by the key in its roster"),
        (stranger, "'yew' that are not signed"),
        (copied_keys, "the same keys twice"),
        (other_roster, "or their rosters differ"),
    ],
)
def test_wrong_keys_get_no_share(changed, reason):
    parties = Parties(5)
    wrong = changed(parties)
    parties.lies["share"] = lambda name, adverts: {**adverts, **wrong}
    assert not refused(parties, ["ash", "cedar"], reason)
    assert not parties.sent["mask"]


def test_a_list_without_a_sites_own_keys_is_refused():
    parties = Parties(5)
    adverts = {name: site.advert for name, site in parties.sites.items()} | {
        "ash": parties.site("ash", b"round 3").advert
    }
    with pytest.raises(SiteProblem, match="without its own"):
        parties.sites["ash"].answer("share", adverts)


@pytest.mark.parametrize("change", ["a bit", "another's", "back to the sender"])
def test_shares_that_were_changed_are_refused(change):
    parties = Parties(5)

    def lie(name, boxes):
        if name != "ash":
            return boxes
        box = boxes["birch"]
        changed = {
            "a bit": box[:-1] + bytes([box[-1] ^ 1]),
            "another's": boxes["cedar"],
            "back to the sender": parties.sent["share"]["ash"]["birch"],
        }
        return {**boxes, "birch": changed[change]}

    parties.lies["mask"] = lie
    survivors, total = parties.sum()
    assert parties.refusals == {"ash": "got shares that 'birch' did not send to it"}
    assert np.array_equal(total, parties.plain_sum(survivors - {"ash"}))


@pytest.mark.parametrize("step", STEPS)
def test_no_step_is_answered_twice_and_nothing_follows_it(step):
    parties = Parties(3)
    asked = {}

    def remember(name, parts):
        asked[name] = parts
        return parts

    parties.lies[step] = remember
    parties.drops[(*STEPS, "none")[STEPS.index(step) + 1]] = parties.names
    with suppress(SiteError):
        parties.sum()
    for later in STEPS:
        with pytest.raises(SiteProblem, match="twice, out of order, or after a refusal"):
            parties.sites["ash"].answer(step if later == STEPS[0] else later, asked["ash"])


# What the server sees.


def test_of_each_site_one_secret_is_revealed_and_never_both():
    parties = Parties(5, {"mask": ["birch"]})
    parties.sum()
    for name, site in parties.sites.items():
        secret = site.mask_key.private_bytes_raw() if name == "birch" else site.seed
        assert protocol._combine(parties.shares_of(name)[1:4]) == secret


def chi_square(content):
    """Of the values of bytes against all being as likely; 255 degrees of freedom."""
    counts = np.bincount(np.frombuffer(content, np.uint8), minlength=256)
    expected = len(content) / 256
    return float(((counts - expected) ** 2 / expected).sum())


# A chi-square of 255 degrees is above it in one of 10^11 cases.
LIMIT = 440


def test_numbers_that_come_too_late_look_random_to_a_server_that_knows_the_sites_key():
    """It counts as dropped out, so its key for masks of pairs is revealed; its own mask is what hides it."""
    parties = Parties(5, length=8000)

    def ask(step, parts):
        answers = dict(parties.ask(step, parts))
        return {name: answer for name, answer in answers.items() if step != "mask" or name != "birch"}

    adverts = {name: site.advert for name, site in parties.sites.items()}
    survivors, _ = parties.sum(ask)
    assert "birch" not in survivors
    key = X25519PrivateKey.from_private_bytes(protocol._combine(parties.shares_of("birch")[:3]))
    publics = {name: advert[32:64] for name, advert in adverts.items() if name != "birch"}
    late = np.frombuffer(parties.sent["mask"]["birch"]["birch"], "<u8")
    late = late - protocol._pair_masks("birch", key, publics, adverts["ash"][:32], 8000)
    assert chi_square(late.tobytes()) < LIMIT
    assert np.array_equal(late - protocol._stream(parties.sites["birch"].seed, 8000), parties.numbers["birch"])


def test_a_wrong_share_makes_every_number_wrong_so_that_the_weights_show_it():
    parties = Parties(5, {"mask": ["birch"]})
    usual = parties.ask

    def ask(step, parts):
        answers = usual(step, parts)
        if step == "reveal":
            share = answers["ash"]["birch"]
            answers["ash"]["birch"] = bytes([share[0] ^ 1]) + share[1:]
        return answers

    survivors, total = parties.sum(ask)
    assert (total != parties.plain_sum(survivors)).all()
