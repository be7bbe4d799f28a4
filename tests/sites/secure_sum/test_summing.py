"""Sites that send keys, shares and masked values instead of updates: bit for bit a simulation, despite dropouts."""

import json

import pytest
import torch
import yaml
from safetensors.torch import load_file

pytest.importorskip("cryptography", reason="needs the extra `flower`")
pytest.importorskip("Crypto", reason="needs the extra `flower`")
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from fedvlp.commands.cli import main
from fedvlp.core.aggregation.fixed_point import decode
from fedvlp.core.state import Client, ClientUpdate
from fedvlp.runs.checkpoint import load_checkpoint
from fedvlp.runs.events import read_events
from fedvlp.sites.ledger import read_ledger
from fedvlp.sites.secure_sum.protocol import sum_sites
from fedvlp.sites.secure_sum.summing import REVEALED, SiteSums, _as_parts, _as_tensors, _read_keys
from fedvlp.sites.wire import Message, SiteError, SiteProblem, read_reply, read_request
from fedvlp.sites.worker import Site
from fedvlp.training.task import ClientResult
from tests.helpers.assertions import assert_equal
from tests.helpers.images import CLASSES, draw
from tests.helpers.sites import Deployment, InProcess, make_sites, method_config, metrics, simulate

NAMES = ["ink", "oil", "paint", "photo"]
DROPPED = "node-1"
"""The node of the site 'oil'."""


def write_key(folder):
    """Write a private key like ``ssh-keygen -t ed25519``, and return the line of the public key."""
    key = Ed25519PrivateKey.generate()
    folder.mkdir()
    (folder / "key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def give_keys(homes):
    """Give each site its key and all sites the same roster."""
    roster = {name: write_key(home / "sum") for name, home in zip(NAMES, homes.values(), strict=False)}
    for home in homes.values():
        (home / "sum" / "roster.yaml").write_text(yaml.safe_dump(roster))


class RecordingSites(InProcess):
    """Sites with possible failures, and a record of all messages.

    Args:
        homes: Homes of the sites by node.
        fails: Function that decides whether a node leaves a request unanswered.
        change: Function that changes a request to a node in transit.
    """

    def __init__(self, homes, fails=lambda node, request: False, change=lambda node, request: request):
        self.running = {node: Site(home) for node, home in homes.items()}
        super().__init__({node: self.handler(node) for node in self.running})
        self.fails = fails
        self.change = change
        self.messages = []

    def handler(self, node):
        def handle(content):
            request = read_request(content)
            if self.fails(node, request):
                raise SiteError("did not answer in 7 s")
            reply = self.running[node].handle(self.change(node, request).to_bytes())
            self.messages.append((request, read_reply(reply)))
            return reply

        return handle


@pytest.fixture(scope="module")
def four_domains(tmp_path_factory):
    """Write four domains with different numbers of images."""
    root = tmp_path_factory.mktemp("four")
    for domain, name in enumerate(NAMES):
        for label, class_name in enumerate(CLASSES):
            (root / name / class_name).mkdir(parents=True)
            for index in range(3 + domain):
                draw(domain % 3, label, index + 10 * domain).save(root / name / class_name / f"{index}.png")
    return root


def deploy(folder, root, names=NAMES):
    """Make sites with keys, and their server."""
    deployment = Deployment(folder, root, names, secure_sum="sum")
    give_keys(deployment.homes)
    return deployment


@pytest.fixture
def deployment(tmp_path, four_domains):
    return deploy(tmp_path, four_domains)


@pytest.fixture
def three(tmp_path, four_domains):
    """Deploy only three sites, so none may drop out."""
    return deploy(tmp_path, four_domains, NAMES[:3])


def summed(rounds=2, **options):
    """Make a config of PromptFL with secure sums."""
    return method_config("promptfl", rounds, **{"secure_sum": True, "baselines": [], **options})


def lost_rounds(deployment):
    return json.loads((deployment.run() / "summary.json").read_text()).get("lost_rounds")


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fed_ncm", {"rounds": 1}),
        ("fed_otp", {"reset_optimizer": False, "dropout": 0.3, "aggregation": {"class_path": "fedvlp.FedAdam"}}),
    ],
)
def test_sites_equal_a_simulation_bit_for_bit_with_a_secure_sum(method, options, deployment):
    config = method_config(method, secure_sum=True, **options)
    simulated = simulate(deployment.folder, config, deployment.root).folder
    assert deployment.serve(config) == 0
    deployed = deployment.prompts()
    expected = load_file(simulated / "prompts.safetensors")
    # Sites do not send personal tensors.
    assert_equal(deployed, {name: expected[name] for name in expected if not name.startswith("personal/")})
    assert metrics(deployment.run()) == metrics(simulated)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, four_domains):
    """Train two rounds, and return the deployment and all messages; a site's policy names allowed tensors.

    Such a policy limits the method's tensors but not a sum's messages.
    """
    deployment = deploy(tmp_path_factory.mktemp("whole"), four_domains)
    with open(deployment.homes[DROPPED] / "site.yaml", "a") as file:
        file.write("policy: {tensors: [prompt]}\n")
    transport = RecordingSites(deployment.homes)
    assert deployment.serve(summed(), transport) == 0
    return deployment, transport.messages


def test_no_update_and_no_metric_leaves_a_site(whole):
    deployment, messages = whole
    trained = [reply for _, reply in messages if reply.kind == "trained"]
    assert len(trained) == 2 * 4
    for reply in trained:
        assert [value.shape for value in reply.tensors.values()] == [(160,)]
        assert reply.values["metrics"] == {}
    steps_and_replies = [(request.values.get("step"), reply) for request, reply in messages]
    masked = [value for step, reply in steps_and_replies if step == "mask" for value in reply.tensors.values()]
    assert {len(value) for value in masked} == {8 * (16 * 64 + 1)}
    assert len({value.numpy().tobytes() for value in masked}) == 2 * 4
    entries = [entry for _, entry in read_ledger(deployment.homes[DROPPED])]
    steps = [entry["step"] for entry in entries if entry["kind"] == "summed"]
    assert steps == 2 * ["share", "mask", "confirm", "reveal"]
    assert all("norm" not in entry for entry in entries)
    assert entries[-1]["epsilon"] is None


def fails_at(kind, step=None):
    def fails(node, request):
        return node == DROPPED and request.kind == kind and request.values.get("step") == step

    return fails


def test_a_dropped_site_counts_only_if_its_masked_update_had_arrived(deployment):
    def restarts(node, request):
        if fails_at("sum", "mask")(node, request):
            transport.running[node] = Site(deployment.homes[node])
        return False

    transport = RecordingSites(deployment.homes, restarts)
    assert deployment.serve(summed(1), transport, "restarted") == 0
    assert deployment.left_out("restarted") == [(1, "oil", "sent no usable answer for the secure sum")]
    assert deployment.serve(summed(1), RecordingSites(deployment.homes, fails_at("train")), "without") == 0
    assert deployment.left_out("without") == [(1, "oil", "did not answer in 7 s")]
    assert_equal(deployment.prompts("restarted"), deployment.prompts("without"))
    assert deployment.serve(summed(1), RecordingSites(deployment.homes, fails_at("sum", "confirm")), "late") == 0
    assert deployment.left_out("late") == []
    assert not torch.equal(deployment.prompts("without")["prompt"], deployment.prompts("late")["prompt"])


def test_a_site_that_evaluates_during_a_sum_or_sends_another_type_leaves_the_sum(deployment):
    transport = RecordingSites(deployment.homes)
    usual = transport.sites[DROPPED]
    found = []

    def evaluates_then_sends_numbers(content):
        request = read_request(content)
        if request.kind == "sum" and request.values["step"] == "mask" and not found:
            values = {name: request.values[name] for name in ("run", "client", "domain")}
            evaluation = Message("evaluate", {**values, "baseline": False, "personal": ""})
            found.append(read_reply(usual(evaluation.to_bytes())).kind)
            found.append(read_reply(usual(content)).kind)
        reply = read_reply(usual(content))
        if request.values.get("round") != 1:
            return reply.to_bytes()
        tensors = {name: value.to(torch.bfloat16) for name, value in reply.tensors.items()}
        return Message(reply.kind, reply.values, tensors).to_bytes()

    transport.sites[DROPPED] = evaluates_then_sends_numbers
    assert deployment.serve(summed(), transport) == 0
    assert found == ["unprepared", "unprepared"]
    assert [(round, name) for round, name, _ in deployment.left_out()] == [(1, "oil"), (2, "oil")]
    assert deployment.left_out()[1][2] == "sent no usable answer for the secure sum"


def test_a_site_reveals_its_shares_of_a_round_once(deployment):
    """A server restarted from a checkpoint before the sum would otherwise get a second sum of the same round."""

    kinds = []

    def dies(node, request):
        kinds.append(request.kind)
        # When the server evaluates the second round, all sites have revealed their shares.
        if request.kind == "evaluate" and kinds.count("train") == 2 * 4:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        deployment.serve(summed(), RecordingSites(deployment.homes, dies))
    (mark,) = deployment.homes[DROPPED].glob("runs/*/secure_sum.json")
    assert json.loads(mark.read_text()) == [1, 0]
    transport = RecordingSites(deployment.homes)
    assert deployment.serve(summed(), transport, checkpoint="last") == 0
    reasons = {reply.values["reason"] for _, reply in transport.messages if reply.kind == "failed"}
    assert reasons == {REVEALED}
    assert lost_rounds(deployment) == [2]


def skip_last_step(*rounds):
    """Let a site skip the last step of these rounds, counted from 0."""
    rounds_so_far = []

    def fails(node, request):
        if request.kind == "train":
            rounds_so_far.append(request.values["round"])
        return node == DROPPED and request.values.get("step") == "reveal" and rounds_so_far[-1] in rounds

    return fails


def test_a_round_without_a_sum_is_lost_and_the_run_continues_or_can_be_resumed(three, capsys):
    assert three.serve(summed(), RecordingSites(three.homes, skip_last_step(1))) == 0
    assert lost_rounds(three) == [2]
    assert [(round, name) for round, name, _ in three.left_out()] == [(2, "ink"), (2, "oil"), (2, "paint")]
    assert three.left_out()[1] == (2, "oil", "did not answer in 7 s")
    run = three.run()
    assert [row["lost"] for row in metrics(run)] == ["", "1"]
    ended = [event.get("lost") for event in read_events(run) if event["event"] == "round_ended"]
    assert ended == [None, 1]
    assert json.loads((run / "summary.json").read_text())["communication_per_client_and_round"]["upload_bytes"] == 4096
    assert "the rounds [2] were lost, so no simulation can reproduce this run" in capsys.readouterr().out
    assert main(["status", str(run)]) == 0
    assert "lost       1 rounds without a secure sum" in capsys.readouterr().out
    before = three.prompts()
    assert_equal(before, load_checkpoint(min(run.glob("checkpoints/*.safetensors")))[0].server.deployed)
    # Two lost rounds in a row end the run. The second one stays lost, since the sites reveal no further shares of it.
    assert three.serve(summed(4), RecordingSites(three.homes, skip_last_step(2, 3)), checkpoint="last") == 1
    capsys.readouterr()
    assert three.serve(summed(5, on_failure="fail"), checkpoint="last") == 1
    assert "Round 4" in capsys.readouterr().err
    assert_equal(three.prompts(), before)
    assert three.serve(summed(5), checkpoint="last") == 0
    assert lost_rounds(three) == [2, 3, 4]
    assert not torch.equal(three.prompts()["prompt"], before["prompt"])


def test_a_sum_of_too_few_sites_ends_before_any_share_is_revealed(deployment, capsys):
    assert deployment.serve(summed(1, min_clients=4), RecordingSites(deployment.homes, fails_at("sum", "mask"))) == 1
    assert "only 3 sites sent masked values, and 4 are needed" in capsys.readouterr().out
    assert not list(deployment.folder.glob("sites/*/runs/*/secure_sum.json"))


def test_a_run_that_ended_before_any_share_was_revealed_is_resumed(deployment, whole):
    kinds = []

    def dies(node, request):
        kinds.append(request.kind)
        if request.values.get("step") == "confirm" and kinds.count("train") == 2 * 4:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        deployment.serve(summed(), RecordingSites(deployment.homes, dies))
    assert deployment.serve(summed(), checkpoint="last") == 0
    assert_equal(deployment.prompts(), whole[0].prompts())


def other_model(node, request):
    if request.kind != "train" or node != DROPPED:
        return request
    return Message("train", request.values, {name: value + 0.5 for name, value in request.tensors.items()})


def test_a_server_that_sends_one_site_another_model_gets_no_sum(deployment, capsys):
    """Otherwise a server could make all other updates predictable, and the sum would reveal this site's update."""
    transport = RecordingSites(deployment.homes, change=other_model)
    assert deployment.serve(summed(1), transport) == 1
    assert "are usable, and 3 are needed" in capsys.readouterr().err
    assert not [reply for _, reply in transport.messages if reply.kind == "summed"]
    reasons = {reply.values["reason"] for _, reply in transport.messages if reply.kind == "failed"}
    assert "got a different request than 'oil', or their rosters differ" in reasons


def test_site_and_server_must_agree_on_a_secure_sum(deployment, capsys):
    transport = RecordingSites(deployment.homes)
    assert deployment.serve(summed(1, secure_sum=False), transport) == 1
    assert "trains only for secure sums, but the server asks for an update" in capsys.readouterr().err
    assert not [reply for _, reply in transport.messages if reply.kind == "trained"]
    plain = Deployment(deployment.folder / "plain", deployment.root, NAMES)
    assert plain.serve(summed(1)) == 1
    assert "is asked for a secure sum, but has no secure_sum in its site.yaml" in capsys.readouterr().err


def test_unusable_keys_end_the_run_before_training(deployment, capsys):
    folder = deployment.homes[DROPPED] / "sum"
    roster = yaml.safe_load((folder / "roster.yaml").read_text())
    unreadable = "can't read its key or roster.yaml for secure sums; see the site's log"
    unlisted = "has a key for secure sums that is not ed25519, or not in its roster.yaml"
    for changed, reason in [
        ([], unreadable),
        ({**roster, "ink": "ssh-ed25519 AAAA"}, unreadable),
        ({**roster, "oil": roster["ink"]}, unlisted),
        ({"ink": roster["ink"]}, unlisted),
    ]:
        (folder / "roster.yaml").write_text(yaml.safe_dump(changed))
        with pytest.raises(SiteProblem, match=reason):
            _read_keys("oil", folder)
    (folder / "key").unlink()
    assert deployment.serve(summed(1)) == 1
    assert f"The site 'oil' {unreadable}. Nothing was trained." in capsys.readouterr().err


UPDATES = {name: {"prompt": torch.tensor([0.25 * index, -0.5])} for index, name in enumerate(NAMES)}


def prepared(**changed):
    return Message("prepare", {"rounds": 2, "client": 0, **changed})


def train_request(round=0, model=0.0, **changed):
    values = {"round": round, "phase": 0, "factor": 1.0, "share": 1.0, "weighting": "examples", **changed}
    return Message("train", values, {"prompt": torch.full((2,), model)})


@pytest.fixture
def sums(tmp_path):
    """Make the secure sums of four trained sites, by the site's name."""
    homes = make_sites(tmp_path, tmp_path, NAMES)
    give_keys(homes)
    return {
        name: SiteSums(name, home / "sum", prepared(), home) for name, home in zip(NAMES, homes.values(), strict=True)
    }


def add(sums, requests):
    """Sum the updates of these sites, each for its own request."""
    adverts = {}
    for index, (name, request) in enumerate(requests.items()):
        sums[name].check(request)
        update = ClientUpdate(Client(index, index, 3, name), UPDATES[name], num_examples=3)
        adverts[name] = _as_parts(sums[name].begin(request, ClientResult(update, {}, {})))

    def ask(step, parts):
        answers = {}
        for name, part in parts.items():
            answer = sums[name].answer(Message("sum", {"step": step}, _as_tensors(part)))
            answers[name] = _as_parts(answer.tensors)
        return answers

    return sum_sites(NAMES, 3, adverts, ask)[1]


@pytest.mark.parametrize("lie", [{"model": 0.5}, {"factor": 0.0}, {"weighting": "uniform"}, {"share": 0.5}])
def test_sites_with_different_requests_give_no_sum(lie, sums):
    """Otherwise a server could make all other updates predictable, and the sum would reveal one site's update."""
    with pytest.raises(SiteProblem, match="got a different request than 'oil'"):
        add(sums, {**dict.fromkeys(NAMES, train_request()), "oil": train_request(**lie)})


def test_sites_that_were_prepared_for_different_runs_give_no_sum(sums, tmp_path):
    # The client's number differs between sites in every run.
    for name, changed in {"ink": {"client": 1}, "oil": {"rounds": 3}}.items():
        sums[name] = SiteSums(name, tmp_path / name / "sum", prepared(**changed), tmp_path / name)
    with pytest.raises(SiteProblem, match="got a different request than 'oil'"):
        add(sums, dict.fromkeys(NAMES, train_request()))


def test_a_second_sum_of_a_round_cannot_reveal_one_sites_update(sums):
    others = [name for name in NAMES if name != "oil"]
    full_sum = add(sums, dict.fromkeys(NAMES, train_request(round=1)))
    for round in (0, 1):
        with pytest.raises(SiteProblem, match=REVEALED):
            add(sums, dict.fromkeys(others, train_request(round=round)))
    # Without the mark on the sites' disks, the server could compute the difference.
    for site in sums.values():
        assert json.loads(site.answered.read_text()) == [1, 0]
        site.answered.unlink()
    difference = full_sum - add(sums, dict.fromkeys(others, train_request(round=1)))
    torch.testing.assert_close(decode(difference, UPDATES["oil"]), UPDATES["oil"])
