"""Sites that die, lie, come late or come back; and a server that is started again."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedvlp.runs.events import read_events
from fedvlp.sites.server import serve
from fedvlp.sites.wire import Message, SiteError, failure, read_reply, read_request
from fedvlp.sites.worker import Site
from tests.helpers.images import DOMAINS
from tests.helpers.sites import (
    InProcess,
    in_process,
    make_site,
    make_sites,
    method_config,
    run_of,
    simulate,
    sites_config,
)

BROKEN = "node-1"
"""The place of the site 'paint'."""


class Faulty(InProcess):
    """Sites of which one does something else when it trains.

    Args:
        sites: what answers, by name.
        fault: from the place's usual handler and a request to train to its reply.
        rounds: in which it does so; all if None.
    """

    def __init__(self, sites, fault, rounds=None):
        super().__init__(sites)
        self.fault = fault
        self.rounds = rounds
        self.usual = sites[BROKEN]
        self.sites[BROKEN] = self.handle

    def handle(self, request):
        message = read_request(request)
        if message.kind != "train" or (self.rounds is not None and message.values["round"] not in self.rounds):
            return self.usual(request)
        return self.fault(self, request)


class Deployment:
    """Three sites, and a server that trains on them.

    Args:
        folder: of all their files.
        image_root: of the sites' images.
    """

    def __init__(self, folder, image_root):
        self.folder = folder
        self.image_root = image_root
        self.homes = make_sites(folder / "sites", image_root, DOMAINS)

    def serve(self, config, transport=None, checkpoint=None):
        """The exit code of a run."""
        server = sites_config(self.folder / "server.yaml", config, DOMAINS)
        return serve(server, transport or in_process(self.homes), self.folder / "deployed", checkpoint)

    def faulty(self, fault, rounds=None):
        """Freshly started sites of which one has a fault."""
        return Faulty(in_process(self.homes).sites, fault, rounds)

    @property
    def run(self):
        """The only run's folder."""
        return run_of(self.folder / "deployed")

    def left_out(self):
        """Rounds, names and reasons of those that were left out."""
        events = [event for event in read_events(self.run) if event["event"] == "client_left_out"]
        return [(event["round"], event["name"], event["reason"]) for event in events]

    def assert_as_simulated(self, config):
        """The prompts are those of the simulation."""
        prompts = load_file(self.run / "prompts.safetensors")
        expected = simulate(self.folder, config, self.image_root).run_state.server.deployed
        assert prompts.keys() == expected.keys()
        assert all(torch.equal(prompts[name], expected[name]) for name in prompts)


@pytest.fixture
def deployment(tmp_path, image_root):
    return Deployment(tmp_path, image_root)


def raises(transport, request):
    raise SiteError("did not answer in 7 s")


def changed(**values):
    """A fault: the reply has other values."""

    def fault(transport, request):
        reply = read_reply(transport.usual(request))
        return Message(reply.kind, {**reply.values, **values}, reply.tensors).to_bytes()

    return fault


def uploads(change):
    """A fault: the reply has other tensors."""

    def fault(transport, request):
        reply = read_reply(transport.usual(request))
        tensors = {name: change(value) for name, value in reply.tensors.items()}
        return Message(reply.kind, reply.values, tensors).to_bytes()

    return fault


FAULTS = {
    "dies": (raises, "did not answer in 7 s"),
    "rubbish": (lambda transport, request: b"\x00rubbish", "cut short, or none of fedvlp's"),
    "other round": (changed(round=5), "answered something else"),
    "no number": (uploads(lambda value: value * float("nan")), "uploads NaN or infinity"),
    "other weight": (changed(num_examples=10**9), "has another number of training images"),
    "not finite": (changed(finite=False), "keeps NaN or infinity"),
    "wrong metrics": (changed(metrics={"loss": 10**400}), "sent a wrong metrics"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_site_that_fails_is_left_out_with_its_reason_and_the_others_continue(name, deployment):
    fault, reason = FAULTS[name]
    assert deployment.serve(method_config("promptfl"), deployment.faulty(fault, rounds=[0])) == 0
    (left_out,) = deployment.left_out()
    assert left_out[:2] == (1, "paint")
    assert reason in left_out[2]


def answers(kind, reply):
    """A transport's handler that gives another reply to requests of a kind, and counts them."""

    def change(transport, place, count):
        usual = transport.sites[place]

        def handle(request):
            if read_request(request).kind != kind:
                return usual(request)
            count.append(kind)
            if isinstance(reply, SiteError):
                raise reply
            return reply

        transport.sites[place] = handle
        return transport

    return change


OTHER_CLIP = "has other weights of CLIP than the server"


def test_a_site_that_can_not_be_prepared_ends_the_run_before_anything_is_trained(deployment, capsys):
    count = []
    transport = answers("prepare", failure("paint", OTHER_CLIP))(in_process(deployment.homes), BROKEN, count)
    assert deployment.serve(method_config("promptfl"), transport) == 1
    assert capsys.readouterr().err == f"fedvlp: error: The site 'paint' {OTHER_CLIP}. Nothing was trained.\n"
    assert count == ["prepare"]
    assert not (deployment.folder / "deployed").exists() or not list((deployment.folder / "deployed").glob("*/*/"))


def test_a_site_that_comes_late_with_a_problem_is_left_out_with_its_reason(deployment):
    transport = in_process(deployment.homes)
    broken = answers("describe", failure("paint", OTHER_CLIP))(in_process(deployment.homes), BROKEN, [])
    transport.sites.pop(BROKEN)
    usual = transport.sites["node-0"]

    def brings(request):
        if read_request(request).kind == "train":
            transport.sites[BROKEN] = broken.sites[BROKEN]
        return usual(request)

    transport.sites["node-0"] = brings
    assert deployment.serve(method_config("promptfl", rounds=3), transport) == 0
    assert deployment.left_out() == [
        (1, "paint", "was not there when the round began"),
        (2, "paint", OTHER_CLIP),
        (3, "paint", OTHER_CLIP),
    ]


def test_what_a_left_out_site_kept_is_as_before_the_round(deployment):
    """It is left out in round 2, and continues in round 3 from round 1."""
    config = method_config("single_domain", rounds=3, reset_optimizer=False)
    states = []

    def refused_in_round_2(transport, request):
        states.append(read_request(request).values["personal"])
        return changed(finite=False)(transport, request) if len(states) == 2 else transport.usual(request)

    assert deployment.serve(config, deployment.faulty(refused_in_round_2)) == 0
    assert states[0] == ""
    assert states[2].startswith("000001-00000-"), "round 3 begins with what round 1 left"


def test_one_more_try_if_the_policy_says_so(deployment):
    tries = []

    def fault(transport, request):
        tries.append(request)
        return b"" if len(tries) == 1 else transport.usual(request)

    config = method_config("promptfl", rounds=1, on_failure="retry")
    assert deployment.serve(config, deployment.faulty(fault)) == 0
    assert deployment.left_out() == []
    assert len(tries) == 2
    deployment.assert_as_simulated(method_config("promptfl", rounds=1))


def test_a_site_that_is_restarted_in_the_run_changes_nothing(deployment):
    config = method_config("plan", rounds=2, steps=2, reset_optimizer=False)
    asked = []

    def restarts(transport, request):
        if request not in asked:  # else it was prepared again, and asked the same again
            transport.usual = Site(deployment.homes[BROKEN]).handle
        asked.append(request)
        return transport.usual(request)

    assert deployment.serve(config, deployment.faulty(restarts)) == 0
    assert len(asked) == 2 * 2 * 2
    assert deployment.left_out() == []
    deployment.assert_as_simulated(config)


def test_a_server_that_is_started_again_resumes_with_what_the_sites_kept(deployment, capsys):
    config = method_config("plan", rounds=2, steps=2, reset_optimizer=False)

    def dies(transport, request):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        deployment.serve(config, deployment.faulty(dies, rounds=[1]))
    assert deployment.serve(config, checkpoint="last") == 0
    assert "after round 1" in capsys.readouterr().out
    deployment.assert_as_simulated(config)


def test_a_site_that_lost_what_it_kept_is_left_out(deployment):
    def loses(transport, request):
        for path in Path(deployment.homes[BROKEN]).glob("runs/*/clients/*"):
            path.unlink()
        return transport.usual(request)

    assert deployment.serve(method_config("plan"), deployment.faulty(loses, rounds=[1])) == 0
    assert deployment.left_out() == [(2, "paint", "has lost what it kept in an earlier round")]


def test_a_site_whose_images_change_in_the_run_is_left_out(tmp_path, image_root, deployment):
    folder = tmp_path / "images"
    shutil.copytree(image_root / "paint", folder)
    home = make_site(deployment.homes[BROKEN], "paint", folder)

    def changes(transport, request):
        (folder / "star" / "0.png").rename(folder / "star" / "other.png")
        transport.usual = Site(home).handle
        return transport.usual(request)

    assert deployment.serve(method_config("promptfl"), deployment.faulty(changes, rounds=[1])) == 0
    assert deployment.left_out() == [(2, "paint", "has other images than when the run began")]


def test_too_few_sites_in_a_round_are_waited_for_and_every_reply_is_said(deployment, capsys, monkeypatch):
    config = method_config("promptfl", rounds=2, min_clients=3)
    transport = in_process(deployment.homes)
    away = transport.sites["node-2"]
    usual = transport.sites["node-0"]

    def leaves(request):
        if read_request(request).kind == "evaluate" and read_request(request).values["baseline"] is False:
            transport.sites.pop("node-2", None)
        return usual(request)

    transport.sites["node-0"] = leaves

    def sleep(seconds):
        transport.sites.update({"node-0": usual, "node-2": away})

    monkeypatch.setattr("fedvlp.sites.registry.time.sleep", sleep)
    assert deployment.serve(config, transport) == 0
    printed = capsys.readouterr().out
    assert "waiting for 'photo': 2 of 3 sites are there; 3 are needed" in printed
    assert printed.count("'ink' trained (") == 2
    deployment.assert_as_simulated(config)


def test_a_site_that_comes_late_takes_part_from_then_on(deployment):
    transport = in_process(deployment.homes)
    late = transport.sites.pop("node-2")
    usual = transport.sites["node-0"]

    def brings(request):
        message = read_request(request)
        if message.kind == "train" and message.values["round"] == 1:
            transport.sites["node-2"] = late
        return usual(request)

    transport.sites["node-0"] = brings
    assert deployment.serve(method_config("promptfl", rounds=3), transport) == 0
    assert [left_out[:2] for left_out in deployment.left_out()] == [(1, "photo"), (2, "photo")]
    assert json.loads((deployment.run / "sites.json").read_text())["sites"].keys() == set(DOMAINS)


NOT_MEASURED = {
    "another's": {"correct": {"validation/ink": 3}, "count": {"validation/ink": 3}},
    "more right than there are": {"correct": {"validation/paint": 4}, "count": {"validation/paint": 3}},
    "other count": {"correct": {"validation/paint": 1}, "count": {"validation/paint": 2}},
}


@pytest.mark.parametrize("values", [*NOT_MEASURED.values(), None], ids=[*NOT_MEASURED, "error"])
def test_a_site_that_can_not_measure_leaves_no_mean_behind(values, deployment):
    transport = in_process(deployment.homes)
    usual = transport.sites[BROKEN]

    def handle(request):
        if read_request(request).kind != "evaluate":
            return usual(request)
        if values is None:
            raise SiteError("is ill")
        return Message("evaluated", {"by_class": {}, **values}).to_bytes()

    transport.sites[BROKEN] = handle
    assert deployment.serve(method_config("promptfl", rounds=1), transport) == 0
    with open(deployment.run / "metrics.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert "validation/ink" in row
    assert "validation/paint" not in row
    assert "validation" not in row


@pytest.mark.parametrize("lie", ["missing class", "more right than predicted", "none"])
def test_counts_by_class_that_contradict_each_other_are_not_used(lie, deployment, image_root):
    homes = make_sites(deployment.folder / "open", image_root, DOMAINS, policy={"class_counts": True})
    transport = in_process(homes)
    usual = transport.sites[BROKEN]

    def handle(request):
        reply = read_reply(usual(request))
        if reply.kind == "evaluated":
            counts = reply.values["by_class"]["validation/paint"]
            correct = reply.values["correct"]["validation/paint"]
            images = reply.values["count"]["validation/paint"]
            lies = {
                "missing class": counts[1:],
                "more right than predicted": [[images, correct, 0], [0, 0, images], [0, 0, 0]],
                "none": counts,
            }
            assert correct > 0
            reply.values["by_class"]["validation/paint"] = lies[lie]
        return reply.to_bytes()

    transport.sites[BROKEN] = handle
    assert deployment.serve(method_config("promptfl", rounds=1), transport) == 0
    summary = json.loads((deployment.run / "summary.json").read_text())
    assert ("validation" in summary["balance"]["last round"]) == (lie == "none")
    assert "validation" in summary["accuracy"]["last round (1)"]


def test_options_of_a_simulation_are_refused(deployment, capsys):
    assert deployment.serve(method_config("promptfl", personal_on_disk=True), InProcess({})) == 1
    assert "trainer.clients.personal_on_disk" in capsys.readouterr().err
