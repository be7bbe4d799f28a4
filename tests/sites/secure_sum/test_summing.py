"""Sites that send no update but keys, shares and masked numbers: as a simulation to the bit, whoever drops out."""

import json
import shutil

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
from fedvlp.runs.events import read_events
from fedvlp.sites.ledger import read_ledger
from fedvlp.sites.secure_sum.protocol import sum_sites
from fedvlp.sites.secure_sum.summing import REVEALED, SiteSums, _as_parts, _as_tensors, _read_keys
from fedvlp.sites.server import serve
from fedvlp.sites.wire import Message, SiteError, SiteProblem, read_reply, read_request
from fedvlp.sites.worker import Site
from fedvlp.training.task import ClientResult
from tests.helpers.assertions import assert_equal
from tests.helpers.images import CLASSES, draw
from tests.helpers.sites import InProcess, make_sites, method_config, metrics, run_of, simulate, sites_config

NAMES = ["ink", "oil", "paint", "photo"]
DROPPED = "node-1"
"""The place of the site 'oil'."""


def write_key(folder):
    """Writes a private key as ``ssh-keygen -t ed25519`` does; returns the line of the public one."""
    key = Ed25519PrivateKey.generate()
    folder.mkdir()
    (folder / "key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def keyed_sites(folder, root, names):
    """Homes of sites with a key each and the same roster."""
    homes = make_sites(folder, root, names, secure_sum="sum")
    roster = {name: write_key(home / "sum") for name, home in zip(names, homes.values(), strict=True)}
    for home in homes.values():
        (home / "sum" / "roster.yaml").write_text(yaml.safe_dump(roster))
    return homes


class Crossed(InProcess):
    """Sites of which one may fail, and all that crosses.

    Args:
        homes: of the sites.
        fails: whether a request gets no answer, by the place's name.
        change: what the request becomes on its way.
    """

    def __init__(self, homes, fails=lambda place, request: False, change=lambda place, request: request):
        self.running = {place: Site(home) for place, home in homes.items()}
        super().__init__({place: self.handler(place) for place in self.running})
        self.fails = fails
        self.change = change
        self.crossed = []

    def handler(self, place):
        def handle(content):
            request = read_request(content)
            if self.fails(place, request):
                raise SiteError("did not answer in 7 s")
            reply = self.running[place].handle(self.change(place, request).to_bytes())
            self.crossed.append((request, read_reply(reply)))
            return reply

        return handle


@pytest.fixture(scope="module")
def four_domains(tmp_path_factory):
    """A folder of four domains with different numbers of images."""
    root = tmp_path_factory.mktemp("four")
    for domain, name in enumerate(NAMES):
        for label, class_name in enumerate(CLASSES):
            (root / name / class_name).mkdir(parents=True)
            for index in range(3 + domain):
                draw(domain % 3, label, index + 10 * domain).save(root / name / class_name / f"{index}.png")
    return root


class Deployment:
    """Sites with keys, and a server.

    Args:
        folder: of all their files.
        root: of the sites' images.
        names: of the sites.
    """

    def __init__(self, folder, root, names=NAMES):
        self.folder = folder
        self.root = root
        self.names = names
        self.homes = keyed_sites(folder / "sites", root, names)

    def serve(self, transport=None, into="deployed", checkpoint=None, method="promptfl", **options):
        config = method_config(method, **{"secure_sum": True, **options})
        server = sites_config(self.folder / "server.yaml", config, self.names)
        return serve(server, transport or Crossed(self.homes), self.folder / into, checkpoint)

    def prompts(self, into="deployed"):
        return load_file(run_of(self.folder / into) / "prompts.safetensors")

    def lost_rounds(self, into="deployed"):
        return json.loads((run_of(self.folder / into) / "summary.json").read_text()).get("lost_rounds")

    def left_out(self, into="deployed"):
        events = [event for event in read_events(run_of(self.folder / into)) if event["event"] == "client_left_out"]
        return [(event["round"], event["name"], event["reason"]) for event in events]


@pytest.fixture
def deployment(tmp_path, four_domains):
    return Deployment(tmp_path, four_domains)


@pytest.fixture
def three(tmp_path, four_domains):
    """Sites of which none may drop out; 'oil' has the place ``DROPPED``."""
    names = NAMES[:3]
    for name in names:
        shutil.copytree(four_domains / name, tmp_path / "three" / name)
    return Deployment(tmp_path, tmp_path / "three", names)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("promptfl", {"aggregation": {"class_path": "fedvlp.FedAdam"}}),
        ("fed_ncm", {"rounds": 1}),
        ("fed_otp", {"reset_optimizer": False, "dropout": 0.3}),
    ],
)
def test_sites_are_a_simulation_to_the_bit_with_a_secure_sum_as_well(method, options, deployment):
    config = method_config(method, secure_sum=True, **options)
    simulated = simulate(deployment.folder, config, deployment.root).folder
    assert deployment.serve(method=method, **options) == 0
    deployed = deployment.prompts()
    expected = load_file(simulated / "prompts.safetensors")
    # What stays on clients no site sends.
    assert_equal(deployed, {name: expected[name] for name in expected if not name.startswith("personal/")})
    assert metrics(run_of(deployment.folder / "deployed")) == metrics(simulated)


def is_asked(kind, step=None):
    def fails(place, request):
        return place == DROPPED and request.kind == kind and request.values.get("step") == step

    return fails


def test_a_site_that_drops_out_is_as_if_it_had_not_trained_unless_its_numbers_had_come(deployment):
    def restarts(place, request):
        if is_asked("sum", "mask")(place, request):
            transport.running[place] = Site(deployment.homes[place])
        return False

    transport = Crossed(deployment.homes, restarts)
    assert deployment.serve(transport, "restarted", rounds=1) == 0
    assert deployment.left_out("restarted") == [(1, "oil", "sent no usable answer for the secure sum")]
    assert deployment.serve(Crossed(deployment.homes, is_asked("train")), "without", rounds=1) == 0
    assert deployment.left_out("without") == [(1, "oil", "did not answer in 7 s")]
    assert_equal(deployment.prompts("restarted"), deployment.prompts("without"))
    assert deployment.serve(Crossed(deployment.homes, is_asked("sum", "confirm")), "late", rounds=1) == 0
    assert deployment.left_out("late") == []
    assert not torch.equal(deployment.prompts("without")["prompt"], deployment.prompts("late")["prompt"])


def test_a_site_that_is_asked_to_measure_within_a_sum_gives_up_the_sum(deployment):
    transport = Crossed(deployment.homes)
    usual = transport.sites[DROPPED]
    found = []

    def measured(content):
        request = read_request(content)
        if request.kind == "sum" and request.values["step"] == "mask" and not found:
            values = {name: request.values[name] for name in ("run", "client", "domain")}
            evaluation = Message("evaluate", {**values, "baseline": False, "personal": ""})
            found.append(read_reply(usual(evaluation.to_bytes())).kind)
            found.append(read_reply(usual(content)).kind)
        return usual(content)

    transport.sites[DROPPED] = measured
    assert deployment.serve(transport, rounds=1) == 0
    assert found == ["unprepared", "unprepared"]
    assert [(round, name) for round, name, _ in deployment.left_out()] == [(1, "oil")]


def test_no_update_and_no_metric_of_a_site_crosses(deployment):
    """Also where a policy names the tensors that may leave: those of the method, and not the parts of a sum."""
    with open(deployment.homes[DROPPED] / "site.yaml", "a") as file:
        file.write("policy: {tensors: [prompt]}\n")
    transport = Crossed(deployment.homes)
    assert deployment.serve(transport) == 0
    trained = [reply for _, reply in transport.crossed if reply.kind == "trained"]
    assert len(trained) == 2 * 4
    for reply in trained:
        assert [value.shape for value in reply.tensors.values()] == [(160,)]
        assert reply.values["metrics"] == {}
    asked = [(request.values.get("step"), reply) for request, reply in transport.crossed]
    masked = [value for step, reply in asked if step == "mask" for value in reply.tensors.values()]
    assert {len(value) for value in masked} == {8 * (16 * 64 + 1)}
    assert len({value.numpy().tobytes() for value in masked}) == 2 * 4
    entries = [entry for _, entry in read_ledger(deployment.homes[DROPPED])]
    steps = [entry["step"] for entry in entries if entry["kind"] == "summed"]
    assert steps == 2 * ["share", "mask", "confirm", "reveal"]
    assert all("norm" not in entry for entry in entries)
    assert entries[-1]["epsilon"] is None


def test_a_site_reveals_its_part_of_a_round_once(deployment):
    """A server that is started again before a checkpoint knows of the sum would get a second one of the same round."""

    asked = []

    def dies(place, request):
        asked.append(request.kind)
        # Asked to measure the second round: all have revealed their part.
        if request.kind == "evaluate" and asked.count("train") == 2 * 4:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        deployment.serve(Crossed(deployment.homes, dies))
    (mark,) = deployment.homes[DROPPED].glob("runs/*/secure_sum.json")
    assert json.loads(mark.read_text()) == [1, 0]
    transport = Crossed(deployment.homes)
    assert deployment.serve(transport, checkpoint="last") == 0
    reasons = {reply.values["reason"] for _, reply in transport.crossed if reply.kind == "failed"}
    assert reasons == {REVEALED}
    assert deployment.lost_rounds() == [2]


def test_a_site_that_sends_other_tensors_than_bytes_drops_out(deployment):
    transport = Crossed(deployment.homes)
    usual = transport.sites[DROPPED]

    def sends_numbers(content):
        reply = read_reply(usual(content))
        tensors = {name: value.to(torch.bfloat16) for name, value in reply.tensors.items()}
        return Message(reply.kind, reply.values, tensors).to_bytes()

    transport.sites[DROPPED] = sends_numbers
    assert deployment.serve(transport, rounds=1) == 0
    assert deployment.left_out() == [(1, "oil", "sent no usable answer for the secure sum")]


def misses_the_last_step(*rounds):
    """One site does not answer the last step of these rounds, counted from 0."""
    asked = []

    def fails(place, request):
        if request.kind == "train":
            asked.append(request.values["round"])
        return place == DROPPED and request.values.get("step") == "reveal" and asked[-1] in rounds

    return fails


def test_a_round_without_a_sum_is_lost_and_the_run_continues(three, capsys):
    assert three.serve(Crossed(three.homes, misses_the_last_step(1))) == 0
    assert three.lost_rounds() == [2]
    assert [(place, name) for place, name, _ in three.left_out()] == [(2, "ink"), (2, "oil"), (2, "paint")]
    assert three.left_out()[1] == (2, "oil", "did not answer in 7 s")
    run = run_of(three.folder / "deployed")
    assert [row["lost"] for row in metrics(run)] == ["", "1"]
    ended = [event.get("lost") for event in read_events(run) if event["event"] == "round_ended"]
    assert ended == [None, 1]
    assert json.loads((run / "summary.json").read_text())["communication_per_client_and_round"]["upload_bytes"] == 4096
    assert "the rounds [2] were lost, so no simulation can reproduce this run" in capsys.readouterr().out
    assert main(["status", str(run)]) == 0
    assert "lost       1 rounds without a secure sum" in capsys.readouterr().out
    # The state is the one before the lost round.
    config = method_config("promptfl", secure_sum=True, rounds=1)
    before = simulate(three.folder, config, three.root).run_state.server.deployed
    assert_equal(three.prompts(), before)
    assert three.serve(checkpoint="last", rounds=3) == 0
    assert three.lost_rounds() == [2]
    assert not torch.equal(three.prompts()["prompt"], before["prompt"])


@pytest.mark.parametrize(("lost", "options"), [((0, 1), {}), ((1,), {"on_failure": "fail"})], ids=["second", "fail"])
def test_a_second_lost_round_or_one_where_no_client_may_fail_ends_the_run_which_can_be_resumed(three, lost, options):
    assert three.serve(Crossed(three.homes, misses_the_last_step(*lost)), rounds=3, **options) == 1
    assert three.serve(checkpoint="last", rounds=3) == 0
    assert three.lost_rounds() == [round + 1 for round in lost]


def test_a_sum_of_too_few_sites_ends_before_any_of_them_has_revealed_its_part(deployment, capsys):
    assert deployment.serve(Crossed(deployment.homes, is_asked("sum", "mask")), min_clients=4) == 1
    assert "only 3 sites sent masked values, and 4 are needed" in capsys.readouterr().out
    assert not list(deployment.folder.glob("sites/*/runs/*/secure_sum.json"))


def test_a_run_that_broke_before_anything_was_revealed_is_resumed(deployment):
    asked = []

    def dies(place, request):
        asked.append(request.kind)
        if request.values.get("step") == "confirm" and asked.count("train") == 2 * 4:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        deployment.serve(Crossed(deployment.homes, dies))
    assert deployment.serve(checkpoint="last") == 0
    config = method_config("promptfl", secure_sum=True)
    assert_equal(deployment.prompts(), simulate(deployment.folder, config, deployment.root).run_state.server.deployed)


def other_model(place, request):
    if request.kind != "train" or place != DROPPED:
        return request
    return Message("train", request.values, {name: value + 0.5 for name, value in request.tensors.items()})


def test_a_server_that_sends_one_site_another_model_gets_no_sum(deployment, capsys):
    """Else all others could be asked for updates that it knows, and the sum would show that site's."""
    transport = Crossed(deployment.homes, change=other_model)
    assert deployment.serve(transport, rounds=1) == 1
    assert "are usable, and 3 are needed" in capsys.readouterr().err
    assert not [reply for _, reply in transport.crossed if reply.kind == "summed"]
    reasons = {reply.values["reason"] for _, reply in transport.crossed if reply.kind == "failed"}
    assert "got a different request than 'oil', or their rosters differ" in reasons


def test_site_and_server_must_agree_on_a_secure_sum(deployment, capsys):
    transport = Crossed(deployment.homes)
    assert deployment.serve(transport, secure_sum=False) == 1
    assert "trains only for secure sums, but the server asks for an update" in capsys.readouterr().err
    assert not [reply for _, reply in transport.crossed if reply.kind == "trained"]
    homes = make_sites(deployment.folder / "plain", deployment.root, NAMES)
    assert deployment.serve(Crossed(homes)) == 1
    assert "is asked for a secure sum, but has no secure_sum in its site.yaml" in capsys.readouterr().err


def test_a_site_whose_keys_can_not_be_used_ends_the_run_before_anything_is_trained(deployment, capsys):
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
    assert deployment.serve(rounds=1) == 1
    assert f"The site 'oil' {unreadable}. Nothing was trained." in capsys.readouterr().err


UPDATES = {name: {"prompt": torch.tensor([0.25 * place, -0.5])} for place, name in enumerate(NAMES)}


def prepared(**changed):
    return Message("prepare", {"rounds": 2, "client": 0, **changed})


def asked(round=0, model=0.0, **changed):
    values = {"round": round, "phase": 0, "factor": 1.0, "share": 1.0, "weighting": "examples", **changed}
    return Message("train", values, {"prompt": torch.full((2,), model)})


@pytest.fixture
def sums(tmp_path):
    """What four sites that have trained do in secure sums, by the site's name."""
    homes = keyed_sites(tmp_path, tmp_path, NAMES)
    return {
        name: SiteSums(name, home / "sum", prepared(), home) for name, home in zip(NAMES, homes.values(), strict=True)
    }


def add(sums, requests):
    """Add up the updates of the sites that are asked, each by its own request; raise the first site's refusal."""
    adverts = {}
    for place, (name, request) in enumerate(requests.items()):
        sums[name].check(request)
        update = ClientUpdate(Client(place, place, 3, name), UPDATES[name], num_examples=3)
        adverts[name] = _as_parts(sums[name].begin(request, ClientResult(update, {}, {})))

    def ask(step, parts):
        answers = {}
        for name, part in parts.items():
            answer = sums[name].answer(Message("sum", {"step": step}, _as_tensors(part)))
            answers[name] = _as_parts(answer.tensors)
        return answers

    return sum_sites(NAMES, 3, adverts, ask)[1]


@pytest.mark.parametrize("lie", [{"model": 0.5}, {"factor": 0.0}, {"weighting": "uniform"}, {"share": 0.5}])
def test_sites_that_are_asked_for_different_things_give_no_sum(lie, sums):
    """Otherwise the server could ask all others for updates that it knows, and the sum would show one site's."""
    with pytest.raises(SiteProblem, match="got a different request than 'oil'"):
        add(sums, {**dict.fromkeys(NAMES, asked()), "oil": asked(**lie)})


def test_sites_that_were_prepared_for_different_runs_give_no_sum(sums, tmp_path):
    # The number of the client differs from site to site in every run.
    for name, changed in {"ink": {"client": 1}, "oil": {"rounds": 3}}.items():
        sums[name] = SiteSums(name, tmp_path / name / "sum", prepared(**changed), tmp_path / name)
    with pytest.raises(SiteProblem, match="got a different request than 'oil'"):
        add(sums, dict.fromkeys(NAMES, asked()))


def test_no_second_sum_of_a_round_shows_the_update_of_the_one_site_that_is_missing_in_it(sums):
    others = [name for name in NAMES if name != "oil"]
    everyone = add(sums, dict.fromkeys(NAMES, asked(round=1)))
    for round in (0, 1):
        with pytest.raises(SiteProblem, match=REVEALED):
            add(sums, dict.fromkeys(others, asked(round=round)))
    # The difference that a server would get from sites without the mark on their disks.
    for site in sums.values():
        assert json.loads(site.answered.read_text()) == [1, 0]
        site.answered.unlink()
    difference = everyone - add(sums, dict.fromkeys(others, asked(round=1)))
    torch.testing.assert_close(decode(difference, UPDATES["oil"]), UPDATES["oil"])
