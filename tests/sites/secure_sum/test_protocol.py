"""The secure sum without a network: it equals the plain sum despite dropouts, and a cheating server gets no sum."""

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
    """A server and its sites in one secure sum, which answer in turn.

    Args:
        count: Number of sites.
        drops: Sites that are silent from a step on, by step; ``advertise`` precedes all steps.
        cheats: Functions from a site's name and correct message to the message that the server sends, by step.
        about: The server's request to each site.
        length: Number of values.
    """

    def __init__(self, count=5, drops=(), cheats=(), about=b"round 3", length=LENGTH):
        self.names = list(KEYS)[:count]
        self.drops = dict(drops)
        self.cheats = dict(cheats)
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
        cheat = self.cheats.get(step, lambda name, part: part)
        for name in sorted(parts.keys() - self.silent):
            try:
                self.sent[step][name] = self.sites[name].answer(step, cheat(name, parts[name]))
            except SiteProblem as problem:
                self.refusals[name] = str(problem)
        return self.sent[step]

    def sum(self, ask=None):
        return sum_sites(self.names, self.length, self.adverts(), ask or self.ask)

    def shares_of(self, name):
        """List indices and shares of all revealed shares of a site's secret."""
        indices = {each: index for index, each in enumerate(self.names, 1)}
        return [(indices[holder], shares[name]) for holder, shares in self.sent["reveal"].items()]

    def plain_sum(self, names):
        return sum((self.numbers[name] for name in names), np.zeros(LENGTH, np.uint64))


def revealed_after_refusal(parties, sites, reason):
    """Check that the server gets no sum and that these sites refuse for the reason; return all revealed shares."""
    with pytest.raises(SiteError):
        parties.sum()
    assert parties.refusals.keys() >= set(sites)
    for name in sites:
        assert reason in parties.refusals[name]
    return parties.sent["reveal"]


@pytest.mark.parametrize(("count", "step"), [(3, "never"), *((5, step) for step in ("advertise", *STEPS, "never"))])
def test_the_sum_equals_the_plain_sum_bit_for_bit_despite_dropouts_at_any_step(count, step):
    lost = {3: [], 5: ["birch", "fir"]}[count]
    parties = Parties(count, {step: lost})
    survivors, total = parties.sum()
    # A site that drops out after sending its values is in the sum.
    gone = set(lost) if step in ("advertise", "share", "mask") else set()
    assert survivors == set(parties.names) - gone
    assert np.array_equal(total, parties.plain_sum(survivors))
    assert not parties.refusals


@pytest.mark.parametrize("step", ["advertise", *STEPS])
def test_below_the_threshold_there_is_no_sum(step):
    parties = Parties(5, {step: ["ash", "birch", "fir"]})
    with pytest.raises(SiteError, match=r"2 sites .*, and 3 are needed"):
        parties.sum()


def test_a_site_that_sends_bytes_of_another_size_counts_as_dropped_out():
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


# A cheating server.


def test_a_server_that_names_different_survivors_gets_one_kind_of_secret():
    """With the mask's seed from some sites and cedar's key from others, it could compute cedar's values."""

    def cheat(name, survivors):
        return survivors if name in ("ash", "cedar") else {each: b"" for each in survivors if each != "cedar"}

    parties = Parties(5, cheats={"confirm": cheat})
    parties.sum()
    assert parties.refusals.keys() == {"ash", "cedar"}
    for reason in parties.refusals.values():
        assert "only 2 sites confirmed the same survivors, and 3 are needed" in reason
    shares = parties.shares_of("cedar")
    assert len(shares) == 3
    assert protocol._combine(shares) == parties.sites["cedar"].mask_key.private_bytes_raw()


def test_a_server_that_names_too_few_survivors_gets_no_signature():
    """Otherwise it could request the sum of two sites."""
    parties = Parties(5, cheats={"confirm": lambda name, survivors: {"ash": b"", "birch": b""}})
    assert not revealed_after_refusal(
        parties, KEYS.keys() & {"ash", "elm"}, "only 2 sites sent masked values, and 3 are needed"
    )


@pytest.mark.parametrize("names", [("birch", "cedar", "elm"), ("ash", "birch", "cedar", "yew")])
def test_survivors_without_the_site_or_with_an_unknown_site_are_rejected(names):
    cheat = dict.fromkeys(names, b"")
    parties = Parties(5, cheats={"confirm": lambda name, survivors: cheat if name == "ash" else survivors})
    parties.sum()
    assert parties.refusals == {"ash": "got an impossible list of survivors"}


def own_keys(parties):
    """Put the server's keys into a site's advert, and keep the signature."""
    advert = parties.sites["birch"].advert
    return {"birch": advert[:32] + Parties(5).sites["birch"].advert[32:96] + advert[96:]}


def unknown_site(parties):
    key = Ed25519PrivateKey.generate()
    return {"yew": SumSite("yew", key, {"yew": key.public_key()}, b"", parties.numbers["ash"]).advert}


def copied_keys(parties):
    """Copy another site's keys, and sign them with the copying site's key."""
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
        (unknown_site, "'yew' that are not signed"),
        (copied_keys, "the same keys twice"),
        (other_roster, "or their rosters differ"),
    ],
)
def test_sites_send_no_shares_for_wrong_keys(changed, reason):
    parties = Parties(5)
    wrong = changed(parties)
    parties.cheats["share"] = lambda name, adverts: {**adverts, **wrong}
    assert not revealed_after_refusal(parties, ["ash", "cedar"], reason)
    assert not parties.sent["mask"]


def test_a_list_without_the_sites_own_keys_is_rejected():
    parties = Parties(5)
    adverts = {name: site.advert for name, site in parties.sites.items()} | {
        "ash": parties.site("ash", b"round 3").advert
    }
    with pytest.raises(SiteProblem, match="without its own"):
        parties.sites["ash"].answer("share", adverts)


@pytest.mark.parametrize("change", ["a bit", "another's", "back to the sender"])
def test_changed_shares_are_rejected(change):
    parties = Parties(5)

    def cheat(name, boxes):
        if name != "ash":
            return boxes
        box = boxes["birch"]
        changed = {
            "a bit": box[:-1] + bytes([box[-1] ^ 1]),
            "another's": boxes["cedar"],
            "back to the sender": parties.sent["share"]["ash"]["birch"],
        }
        return {**boxes, "birch": changed[change]}

    parties.cheats["mask"] = cheat
    survivors, total = parties.sum()
    assert parties.refusals == {"ash": "got shares that 'birch' did not send to it"}
    assert np.array_equal(total, parties.plain_sum(survivors - {"ash"}))


@pytest.mark.parametrize("step", STEPS)
def test_a_site_answers_each_step_once_and_in_order(step):
    parties = Parties(3)
    messages = {}

    def remember(name, parts):
        messages[name] = parts
        return parts

    parties.cheats[step] = remember
    parties.drops[(*STEPS, "none")[STEPS.index(step) + 1]] = parties.names
    with suppress(SiteError):
        parties.sum()
    for later in STEPS:
        with pytest.raises(SiteProblem, match="twice, out of order, or after a refusal"):
            parties.sites["ash"].answer(step if later == STEPS[0] else later, messages["ash"])


# The server's view.


def test_only_one_of_a_sites_two_secrets_is_revealed():
    parties = Parties(5, {"mask": ["birch"]})
    parties.sum()
    for name, site in parties.sites.items():
        secret = site.mask_key.private_bytes_raw() if name == "birch" else site.seed
        assert protocol._combine(parties.shares_of(name)[1:4]) == secret


def chi_square(content):
    """Compute the chi-square statistic of byte values against a uniform distribution; 255 degrees of freedom."""
    counts = np.bincount(np.frombuffer(content, np.uint8), minlength=256)
    expected = len(content) / 256
    return float(((counts - expected) ** 2 / expected).sum())


# A chi-square variable with 255 degrees of freedom exceeds it in one of 10^11 cases.
LIMIT = 440


def test_late_values_look_random_to_a_server_with_the_sites_key():
    """The site counts as dropped out, so its key for pair masks is revealed; only its own mask hides the values."""
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


def test_a_wrong_share_changes_every_value():
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
