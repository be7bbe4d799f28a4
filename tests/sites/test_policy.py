"""A site decides which runs it joins and which tensors may leave it, and gives its reasons."""

import re
import time
from datetime import datetime, timezone

import pytest

from fedvlp.commands.cli import main
from fedvlp.runs.run_folder import WAITING
from fedvlp.sites import commands, policy
from fedvlp.sites.ledger import read_ledger
from fedvlp.sites.policy import Proposal, decide, request_deviation, sign
from fedvlp.sites.server import serve
from fedvlp.sites.site_config import read_site_config
from fedvlp.sites.wire import Message, read_reply, read_request
from fedvlp.sites.worker import Site
from fedvlp.utils.errors import UserError
from tests.helpers.images import DOMAINS
from tests.helpers.sites import (
    Deployment,
    description,
    in_process,
    make_site,
    make_sites,
    method_config,
    plan_config,
    sites_config,
)

UPLOADS = {"first": {"prompt": ([4, 64], 1024), "visual.a": ([3], 12)}, "second": {"prompt": ([4, 64], 1024)}}
OWN = {"clip_norm": 0.5, "noise_multiplier": 2.0, "seed": None}
RULES = {  # a violated value, the reason for the refusal, and a satisfied value
    "methods": (["TRIP", "PL*"], "does not allow the method PromptFL; it allows TRIP, PL*", ["Prompt*"]),
    "phases": (["first"], "does not allow the phases second; it allows first", ["first", "second"]),
    "add_ons": ([], "does not allow the add-ons FedProx; it allows none", ["FedProx"]),
    "clips": (["77"], "does not allow the CLIP with the fingerprint 0f1e; it allows 77", ["77", "0f1e"]),
    "tensors": (["visual.*"], "does not allow the tensors prompt and 1 more; it allows visual.*", ["*.?", "prompt"]),
    "max_upload_bytes": (1035, "does not allow more than 1,035 bytes in a message; this would be 1,036", 1036),
    "max_run_bytes": (4119, "does not allow more than 4,119 bytes in a run; this would be 4,120", 4120),
    "max_rounds": (1, "does not allow more than 1 rounds; this would be 2", 2),
    "min_noise_multiplier": (0.5, "requires noise of at least 0.5 x clip_norm, drawn from its own randomness", None),
    "not_before": ("2999-01-01", "does not allow runs before 2999-01-01 00:00:00", "2026-01-01T08:00+01:00"),
    "not_after": ("2026-01-01T08:00+01:00", "does not allow runs after 2026-01-01 08:00:00+01:00", "2999-01-01"),
    "approve": ("listed", "allows only runs signed by one of its signers; this run has no signature", "always"),
}


def policy_of(tmp_path, **policy):
    return read_site_config(make_site(tmp_path, "ink", tmp_path, policy=policy)).policy


def decide_on(tmp_path, run_description, **policy):
    return decide(policy_of(tmp_path, **policy), tmp_path, Proposal("run", run_description), lambda: UPLOADS)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_explains_each_refusal(name, tmp_path):
    strict, reason, lenient = RULES[name]
    kind, answer = decide_on(tmp_path, description(), **{name: strict})
    assert (kind, answer[: len(reason)]) == ("refused", reason)
    assert decide_on(tmp_path, description(), **{name: lenient}) == ("", "")


def test_dates_in_yaml_need_no_quotes(tmp_path):
    make_site(tmp_path, "ink", tmp_path)
    with open(tmp_path / "site.yaml", "a") as file:
        file.write("policy: {not_before: 2026-12-01, not_after: 2026-12-24T18:00:00+01:00}\n")
    policy = read_site_config(tmp_path).policy
    assert (policy.not_before.day, policy.not_after.hour) == (1, 18)


@pytest.mark.parametrize(("limit", "last_hour"), [("2026-06-01T18:00+05:00", 13), ("2026-06-01T18:00", 21)])
@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the zone of a process can be set on Unix only")
def test_times_without_a_zone_are_in_the_sites_zone(limit, last_hour, tmp_path, monkeypatch):
    class Clock(datetime):
        @classmethod
        def now(cls, zone):
            return instant.astimezone(zone)

    until, since = (policy_of(tmp_path, **{name: limit}) for name in ("not_after", "not_before"))
    run = Proposal("run", description())
    monkeypatch.setattr(policy, "datetime", Clock)
    monkeypatch.setenv("TZ", "Earlier+3")  # POSIX counts westwards: 18:00 there is 21:00 UTC
    time.tzset()
    try:
        for hour, minute, is_over in [(last_hour - 1, 59, False), (last_hour, 1, True)]:
            instant = datetime(2026, 6, 1, hour, minute, tzinfo=timezone.utc)
            assert decide(until, tmp_path, run, dict)[0] == ("refused" if is_over else "")
            assert decide(since, tmp_path, run, dict)[0] == ("" if is_over else "refused")
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("noise", "is_enough"),
    [(None, False), (OWN, True), ({**OWN, "noise_multiplier": 1.9}, False), ({**OWN, "seed": 7}, False)],
)
def test_a_site_can_require_noise_from_its_own_randomness(noise, is_enough, tmp_path):
    kind, _ = decide_on(tmp_path, description(noise=noise), min_noise_multiplier=2.0)
    assert kind == ("" if is_enough else "refused")


def test_noise_must_cover_all_tensors_and_match_the_description(tmp_path):
    run = Proposal("run", description(noise=OWN))
    rules = policy_of(tmp_path, min_noise_multiplier=2.0)
    kind, reason = decide(rules, tmp_path, run, lambda: {"train": {**UPLOADS["first"], "add_on/0/prompt": ([4], 16)}})
    assert (kind, reason) == ("refused", "does not allow the tensor 'add_on/0/prompt', which would leave without noise")
    run_description = description(noise=OWN)
    order = {"round": 1, "noise": OWN}
    assert request_deviation(run_description, order) == ""
    assert (
        request_deviation(run_description, {**order, "round": 2})
        == "is asked for round 3, but the run's description allows 2 rounds"
    )
    for noise in (None, {**OWN, "seed": 1}, {**OWN, "clip_norm": 9.0}):
        assert (
            request_deviation(run_description, {**order, "noise": noise})
            == "is asked to add noise that differs from the run's description"
        )
    seeded = {**OWN, "seed": 7}
    assert request_deviation(description(noise=seeded), {**order, "noise": {**OWN, "seed": 8}}) == ""


def test_all_violations_are_reported_together_without_building_the_method(tmp_path):
    policy = policy_of(tmp_path, methods=[], max_rounds=1, max_upload_bytes=1)
    kind, reason = decide(policy, tmp_path, Proposal("run", description()), lambda: pytest.fail("made the method"))
    method, rounds = "the method PromptFL; it allows none", "more than 1 rounds; this would be 2"
    assert (kind, reason) == ("refused", f"does not allow {method}; it does not allow {rounds}")


@pytest.fixture(params=["ed25519", "ecdsa"])
def key(request, tmp_path):
    """Write a private key with its public key, and return the path of the private key."""
    pytest.importorskip("cryptography", reason="comes with the extra `flower`")
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    kinds = {"ed25519": ed25519.Ed25519PrivateKey.generate, "ecdsa": lambda: ec.generate_private_key(ec.SECP384R1())}
    made = kinds[request.param]()
    path = tmp_path / "chief"
    path.write_bytes(made.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption()))
    public = made.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public)
    return path


@pytest.mark.parametrize("approve", ["always", "listed"])
def test_a_signature_is_valid_for_one_description_and_one_key(approve, key, tmp_path):
    run_description = description()
    run = Proposal("run", run_description)
    signature = sign(key, run.content)
    rules = {"signers": ["chief.pub"], "approve": approve}
    assert decide_on(tmp_path, {**run_description, "signature": signature}, **rules) == ("", "")
    for wrong in (
        run_description,
        {**run_description, "signature": signature, "rounds": 1},
        {**run_description, "signature": "00"},
    ):
        assert "signed by one of its signers" in decide_on(tmp_path, wrong, **rules)[1]
    # If signers are always required, a list of runs does not replace them.
    kind, _ = decide_on(tmp_path, run_description, **rules, runs=[run.digest])
    assert kind == ("" if approve == "listed" else "refused")
    with pytest.raises(UserError, match="Expected an ed25519 or ECDSA private key"):
        sign(key.with_suffix(".pub"), b"")


@pytest.mark.parametrize("key", ["ecdsa"], indirect=True)
def test_deploy_signs_the_description_that_sites_check(key, tmp_path, image_root, monkeypatch, capsys):
    monkeypatch.setattr(commands, "find_spec", lambda name: object())
    config = sites_config(tmp_path / "config.yaml", method_config("promptfl", rounds=1), DOMAINS)
    rules = {"signers": [str(key.with_suffix(".pub"))]}
    sites = make_sites(tmp_path / "sites", image_root, DOMAINS, policy=rules)
    assert serve(config, in_process(sites), tmp_path / "unsigned") == 1
    printed = capsys.readouterr().err
    assert all(f"The site {name!r} allows only runs signed by one of its signers" in printed for name in DOMAINS)
    assert main(["deploy", "sign", str(tmp_path), str(key)]) == 0
    digest = capsys.readouterr().out.split()[-1]
    assert digest in printed
    assert serve(config, in_process(sites), tmp_path / "signed") == 0


def test_the_server_waits_and_reports_while_the_operator_decides(tmp_path, image_root, monkeypatch, capsys):
    config = method_config("promptfl", rounds=1, min_clients=3)
    deployment = Deployment(tmp_path, image_root)
    home = make_site(deployment.homes["node-1"], "paint", image_root / "paint", policy={"approve": "ask"})
    printed = []

    def sleep(seconds):
        printed.append((tmp_path / "deployed" / WAITING).read_text())
        assert main(["site", "approve", str(home)]) == 0
        shown = capsys.readouterr().out
        digest = re.search("digest ([0-9a-f]{64})", shown)[1]
        assert main(["site", "approve", str(home), digest[:8]]) == 0
        printed.extend([shown, capsys.readouterr().out])

    monkeypatch.setattr("fedvlp.sites.registry.time.sleep", sleep)
    monkeypatch.setattr("fedvlp.sites.registry.SECONDS_BETWEEN_QUESTIONS", 0.0)
    assert deployment.serve(config) == 0
    waits, shown, approved = printed
    assert waits.startswith("for 'paint' (its operator has not approved the run yet): 2 of 3 sites are connected")
    for words in (
        "method: PromptFL, with add-ons none",
        "CLIP: fedvlp-tiny, fingerprint",
        "sent in each of 1 rounds:\n    prompt, 16 x 64 values, 4,096 bytes, after the phase train",
        "in all: 4,096 bytes of tensors",
        "combines the updates of 'ink', 'paint', 'photo'",
        "noise that this site adds: none",
        "runs that wait for approval: 1",
    ):
        assert words in shown
    assert approved.endswith("decided: approve\n")
    entries = [entry for _, entry in read_ledger(home)]
    assert [entry["kind"] for entry in entries if entry["way"] == "left"][:2] == ["waiting", "described"]
    assert main(["site", "refuse", str(home), next((home / "approvals").glob("*.json")).stem]) == 0
    assert deployment.serve(config, into="refused") == 1
    assert "'paint' does not allow the run, which its operator has refused. Nothing" in capsys.readouterr().err
    for beginning in ("zz", "../approvals/"):
        assert main(["site", "approve", str(home), beginning]) == 1
        assert "matches 0 runs" in capsys.readouterr().err


def test_announced_tensors_are_the_tensors_that_leave(tmp_path, image_root):
    config = plan_config(rounds=1, steps=2)
    config["trainer"]["local"]["add_ons"] = [{"class_path": "Scaffold"}]
    deployment = Deployment(tmp_path, image_root, policy={"tensors": ["*"]})
    transport = in_process(deployment.homes)
    site = Site(deployment.homes["node-2"])
    transport.sites["node-2"] = site.handle
    assert deployment.serve(config, transport) == 0
    (uploads,) = site.uploads.values()
    trained = [entry for _, entry in read_ledger(site.home) if entry and entry["kind"] == "trained"]
    left = [{name: (each["shape"], each["bytes"]) for name, each in entry["tensors"].items()} for entry in trained]
    assert left == [*uploads.values()]
    assert [any("add_on/" in name for name in each) for each in left] == [False, True]


def test_repeated_rounds_and_restarts_count_towards_the_limits(tmp_path, image_root):
    deployment = Deployment(tmp_path, image_root)
    homes = deployment.homes
    ink = Site(make_site(homes["node-0"], "ink", image_root / "ink", policy={"max_rounds": 2}))
    # The tensors of two rounds would fit, but not together with their headers.
    home = make_site(homes["node-1"], "paint", image_root / "paint", policy={"max_run_bytes": 8192})
    transport = in_process(homes)
    twice = []

    def train_twice(request):
        if read_request(request).kind == "train":
            twice.append(read_reply(ink.handle(request)).kind)
        return ink.handle(request)

    def restarted(request):
        if read_request(request).values.get("round") == 1 and not restarts:
            restarts.append(Site(home).handle)
        return (restarts or [usual])[-1](request)

    usual = transport.sites["node-1"]
    restarts = []
    transport.sites.update({"node-0": train_twice, "node-1": restarted})
    assert deployment.serve(method_config("promptfl"), transport) == 0
    assert twice == ["trained", "failed"]
    found = {name: (round, reason) for round, name, reason in deployment.left_out()}
    assert found["ink"] == (2, "does not allow more than 2 rounds; this would be 3")
    round, reason = found["paint"]
    assert round == 2
    assert reason.startswith("does not allow more than 8,192 bytes in a run; this would be ")
    entries = [entry for _, entry in read_ledger(home)]
    left = [entry for entry in entries if entry["way"] == "left"]
    assert reason in {entry.get("reason") for entry in left}
    assert sum(entry["bytes"] for entry in left if entry["kind"] != "failed") <= 8192
    assert sum(Site(home).ledger.bytes.values()) == sum(entry["bytes"] for entry in left)


def reply_to(site, request, **changed):
    """Send a site a request from a real run with some changed values, and return its reply."""
    return read_reply(site.handle(Message(request.kind, {**request.values, **changed}, request.tensors).to_bytes()))


@pytest.fixture(scope="module")
def plan(tmp_path_factory, image_root):
    """Record the first request of each kind and phase to one site, in a round of a method with two phases."""
    folder = tmp_path_factory.mktemp("plan")
    config = plan_config(rounds=1, steps=1)
    deployment = Deployment(folder, image_root)
    recorded = in_process(deployment.homes)
    assert deployment.serve(config, recorded) == 0
    requests = [read_request(request) for request in recorded.requests]
    first_site_requests = [
        each for each in requests if each.values.get("client") == 0 and not each.values.get("baseline")
    ]
    return {(each.kind, each.values.get("phase", 0)): each for each in reversed(first_site_requests)}


@pytest.fixture
def limited(tmp_path, image_root):
    """Make a site that joins only one round of an approved run."""
    rules = {"max_rounds": 1, "approve": "ask", "not_after": "2999-01-01"}
    return make_site(tmp_path / "limited", "ink", image_root / "ink", policy=rules)


def prepared(home, requests):
    """Start a site, approve the run, and prepare the site for it."""
    site = Site(home)
    reply_to(site, requests["prepare", 0])
    (approval,) = (home / "approvals").glob("*.json")
    assert main(["site", "approve", str(home), approval.stem]) == 0
    assert reply_to(site, requests["prepare", 0]).kind == "prepared"
    return site


def test_rounds_are_limited_per_phase_and_evaluations_per_run(limited, plan):
    site = prepared(limited, plan)
    trained = [reply_to(site, plan["train", phase], personal="").kind for phase in (0, 1, 1, 0)]
    assert trained == ["trained", "trained", "failed", "failed"]
    measured = [reply_to(site, plan["evaluate", 0]).kind for _ in range(3)]
    assert measured == ["evaluated"] * 3
    # The ledger keeps the count, so neither a restart nor an evaluation resets it.
    for other in (site, prepared(limited, plan)):
        found = reply_to(other, plan["evaluate", 0])
        assert found.values["reason"] == "does not allow more than 3 evaluations in a run; this would be 4"


def test_a_run_refused_later_is_neither_trained_nor_evaluated(limited, plan):
    site = prepared(limited, plan)
    assert main(["site", "refuse", str(limited), next((limited / "approvals").glob("*.json")).stem]) == 0
    for kind in ("train", "evaluate"):
        found = reply_to(site, plan[kind, 0])
        assert found.values["reason"] == "does not allow the run, which its operator has refused"


def test_the_server_cannot_add_lines_to_the_text_for_the_operator(limited, plan, capsys):
    values = {name: plan["prepare", 0].values[name] for name in description()}
    reply = read_reply(Site(limited).handle(Message("describe", {"run": "a, digest 77", **values}).to_bytes()))
    assert reply.kind == "waiting"
    (approval,) = (limited / "approvals").glob("*.json")
    approval.write_text(approval.read_text().replace("signature: none", "signature: none\\n  signature: one"))
    capsys.readouterr()
    assert main(["site", "approve", str(limited)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("run 'a, digest 77', digest ")
    assert [line for line in shown if "noise that" in line] == ["  noise that this site adds: none"]
    assert "  signature: none\\n  signature: one" in shown
