"""Sites that die, lie, come late or come back; and a server that is started again."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedvlp.runs.events import read_events
from fedvlp.sites import InProcess, Site, SiteError
from fedvlp.sites.wire import Message, read_reply, read_request
from tests.helpers.images import DOMAINS
from tests.helpers.sites import in_process, make_site, make_sites, method_config, run_of, serve, simulate, sites_config

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
        return Message(
            reply.kind, reply.values, {name: change(value) for name, value in reply.tensors.items()}
        ).to_bytes()

    return fault


FAULTS = {
    "dies": (raises, "did not answer in 7 s"),
    "rubbish": (lambda transport, request: b"\x00rubbish", "cut short, or none of fedvlp's"),
    "other kind": (lambda transport, request: Message("left").to_bytes(), "answered something else"),
    "other round": (changed(round=5), "answered something else"),
    "no number": (uploads(lambda value: value * float("nan")), "uploads NaN or infinity"),
    "other shape": (uploads(lambda value: value[:1]), "uploads 'prompt' as [1, 64]"),
    "other weight": (changed(num_examples=10**9), "has another number of training images"),
    "not finite": (changed(finite=False), "keeps NaN or infinity"),
}


def prompts(folder):
    return load_file(run_of(folder) / "prompts.safetensors")


def left_out(folder):
    """Names and reasons of those that were left out."""
    found = [event for event in read_events(run_of(folder)) if event["event"] == "client_left_out"]
    return [(event["round"], event["name"], event["reason"]) for event in found]


@pytest.mark.parametrize("name", FAULTS)
def test_a_site_that_fails_is_left_out_with_its_reason_and_the_others_go_on(name, tmp_path, image_root):
    fault, reason = FAULTS[name]
    server = sites_config(tmp_path / "server.yaml", method_config("promptfl"), DOMAINS)
    homes = make_sites(tmp_path / "sites", image_root, DOMAINS)
    transport = Faulty(in_process(homes).sites, fault, rounds=[0])
    assert serve(server, transport, tmp_path / "deployed") == 0
    (found,) = left_out(tmp_path / "deployed")
    assert found[:2] == (1, "paint")
    assert reason in found[2]


def test_what_a_left_out_site_kept_is_as_before_the_round(tmp_path, image_root):
    """The simulation has a client that is left out in round 2; both go on in round 3 from round 1."""
    config = method_config("single_domain", rounds=3, reset_optimizer=False)
    config["model"]["init_args"]["optimizer"] = {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.1}}
    homes = make_sites(tmp_path / "sites", image_root, DOMAINS)
    server = sites_config(tmp_path / "server.yaml", config, DOMAINS)
    states = {}

    def refused(transport, request):
        return changed(finite=False)(transport, request)

    def kept(transport, request):
        message = read_request(request)
        states[message.values["round"]] = message.values["personal"]
        return transport.usual(request)

    transport = Faulty(in_process(homes).sites, lambda *given: (kept, refused, kept)[_round(given[1])](*given))
    assert serve(server, transport, tmp_path / "deployed") == 0
    first, third = states[0], states[2]
    assert first == ""
    assert third.startswith("000001-00000-"), "round 3 begins with what round 1 left"


def _round(request):
    return read_request(request).values["round"]


def test_one_more_try_if_the_policy_says_so(tmp_path, image_root):
    tries = []

    def fault(transport, request):
        tries.append(request)
        return b"" if len(tries) == 1 else transport.usual(request)

    config = method_config("promptfl", rounds=1, on_failure="retry")
    server = sites_config(tmp_path / "server.yaml", config, DOMAINS)
    homes = make_sites(tmp_path / "sites", image_root, DOMAINS)
    assert serve(server, Faulty(in_process(homes).sites, fault), tmp_path / "deployed") == 0
    assert left_out(tmp_path / "deployed") == []
    assert len(tries) == 2
    simulated = simulate(tmp_path, method_config("promptfl", rounds=1), image_root)
    assert torch.equal(prompts(tmp_path / "deployed")["prompt"], simulated.run_state.server.shared["prompt"])


def test_a_site_that_is_started_anew_in_the_run_changes_nothing(tmp_path, image_root):
    config = method_config("plan", rounds=2, steps=2, reset_optimizer=False)
    homes = make_sites(tmp_path / "sites", image_root, DOMAINS)
    asked = []

    def restarts(transport, request):
        if request not in asked:  # else it was prepared again, and asked the same once more
            transport.usual = Site(homes[BROKEN]).handle
        asked.append(request)
        return transport.usual(request)

    server = sites_config(tmp_path / "server.yaml", config, DOMAINS)
    assert serve(server, Faulty(in_process(homes).sites, restarts), tmp_path / "deployed") == 0
    assert len(asked) == 2 * 2 * 2
    assert left_out(tmp_path / "deployed") == []
    expected = simulate(tmp_path, config, image_root).run_state.server.deployed
    found = prompts(tmp_path / "deployed")
    assert all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize("method", ["plan", "adapt"])
def test_a_server_that_is_started_again_goes_on_with_what_the_sites_kept(method, tmp_path, image_root, capsys):
    config = method_config(method, rounds=2, steps=2, reset_optimizer=False)
    homes = make_sites(tmp_path / "sites", image_root, DOMAINS)
    server = sites_config(tmp_path / "server.yaml", config, DOMAINS)

    def dies(transport, request):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve(server, Faulty(in_process(homes).sites, dies, rounds=[1]), tmp_path / "deployed")
    assert serve(server, in_process(homes), tmp_path / "deployed", "last") == 0
    assert "after round 1" in capsys.readouterr().out
    expected = simulate(tmp_path, config, image_root).run_state.server.deployed
    found = prompts(tmp_path / "deployed")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_a_site_that_lost_what_it_kept_is_left_out(tmp_path, image_root):
    def loses(transport, request):
        for path in Path(homes[BROKEN]).glob("runs/*/clients/*"):
            path.unlink()
        return transport.usual(request)

    homes = make_sites(tmp_path / "sites", image_root, DOMAINS)
    server = sites_config(tmp_path / "server.yaml", method_config("plan"), DOMAINS)
    assert serve(server, Faulty(in_process(homes).sites, loses, rounds=[1]), tmp_path / "deployed") == 0
    assert left_out(tmp_path / "deployed") == [(2, "paint", "has lost what it kept in an earlier round")]


def test_a_site_whose_images_change_in_the_run_is_left_out(tmp_path, image_root):
    folder = tmp_path / "images"
    shutil.copytree(image_root / "paint", folder)
    homes = make_sites(tmp_path / "sites", image_root, DOMAINS)
    make_site(homes[BROKEN], "paint", folder)

    def changes(transport, request):
        (folder / "star" / "0.png").rename(folder / "star" / "other.png")
        transport.usual = Site(homes[BROKEN]).handle
        return transport.usual(request)

    server = sites_config(tmp_path / "server.yaml", method_config("promptfl"), DOMAINS)
    assert serve(server, Faulty(in_process(homes).sites, changes, rounds=[1]), tmp_path / "deployed") == 0
    assert left_out(tmp_path / "deployed") == [(2, "paint", "has other images than when the run began")]


def test_too_few_sites_end_the_run_before_it_begins(tmp_path, image_root, capsys):
    server = sites_config(tmp_path / "server.yaml", method_config("promptfl", min_clients=3), DOMAINS)
    homes = make_sites(tmp_path / "sites", image_root, DOMAINS[:2])
    assert serve(server, in_process(homes), tmp_path / "deployed") == 1
    message = capsys.readouterr().err
    assert "2 of 3 sites are there after 0.1 s, and 3 are needed. Not there: 'photo'" in message
    assert not (tmp_path / "deployed").exists()


def test_too_few_sites_in_a_round_end_the_run_and_it_goes_on_later(tmp_path, image_root, capsys):
    config = method_config("promptfl", rounds=2, min_clients=3)
    server = sites_config(tmp_path / "server.yaml", config, DOMAINS)
    homes = make_sites(tmp_path / "sites", image_root, DOMAINS)
    transport = in_process(homes)
    usual = transport.sites["node-0"]

    def leaves(request):
        if read_request(request).kind == "evaluate" and read_request(request).values["baseline"] is False:
            transport.sites.pop("node-2", None)
        return usual(request)

    transport.sites["node-0"] = leaves
    assert serve(server, transport, tmp_path / "deployed") == 1
    assert "Not there: 'photo'" in capsys.readouterr().err
    assert serve(server, in_process(homes), tmp_path / "deployed", "last") == 0
    expected = simulate(tmp_path, config, image_root).run_state.server.deployed
    assert torch.equal(prompts(tmp_path / "deployed")["prompt"], expected["prompt"])


def test_a_site_that_comes_late_takes_part_from_then_on(tmp_path, image_root):
    server = sites_config(tmp_path / "server.yaml", method_config("promptfl", rounds=3), DOMAINS)
    homes = make_sites(tmp_path / "sites", image_root, DOMAINS)
    transport = in_process(homes)
    late = transport.sites.pop("node-2")
    usual = transport.sites["node-0"]

    def brings(request):
        message = read_request(request)
        if message.kind == "train" and message.values["round"] == 1:
            transport.sites["node-2"] = late
        return usual(request)

    transport.sites["node-0"] = brings
    assert serve(server, transport, tmp_path / "deployed") == 0
    reasons = [(number, name) for number, name, _ in left_out(tmp_path / "deployed")]
    assert reasons == [(1, "photo"), (2, "photo")]
    known = json.loads((run_of(tmp_path / "deployed") / "sites.json").read_text())
    assert known["sites"].keys() == set(DOMAINS)


NOT_MEASURED = {
    "no sum": {"correct": {}, "count": {}},
    "another's": {"correct": {"validation/ink": 3}, "count": {"validation/ink": 3}},
    "more right than there are": {"correct": {"validation/paint": 4}, "count": {"validation/paint": 3}},
    "other count": {"correct": {"validation/paint": 1}, "count": {"validation/paint": 2}},
}


@pytest.mark.parametrize("values", [*NOT_MEASURED.values(), None], ids=[*NOT_MEASURED, "error"])
def test_a_site_that_can_not_measure_leaves_no_mean_behind(values, tmp_path, image_root):
    homes = make_sites(tmp_path / "sites", image_root, DOMAINS)
    server = sites_config(tmp_path / "server.yaml", method_config("promptfl", rounds=1), DOMAINS)
    transport = in_process(homes)
    usual = transport.sites[BROKEN]

    def handle(request):
        if read_request(request).kind != "evaluate":
            return usual(request)
        if values is None:
            raise SiteError("is ill")
        return Message("evaluated", values).to_bytes()

    transport.sites[BROKEN] = handle
    assert serve(server, transport, tmp_path / "deployed") == 0
    with open(run_of(tmp_path / "deployed") / "metrics.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert "validation/ink" in row
    assert "validation/paint" not in row
    assert "validation" not in row


def test_options_of_a_simulation_are_refused(tmp_path, image_root, capsys):
    server = sites_config(tmp_path / "server.yaml", method_config("promptfl", personal_on_disk=True), DOMAINS)
    assert serve(server, InProcess({}), tmp_path / "deployed") == 1
    assert "trainer.clients.personal_on_disk" in capsys.readouterr().err
