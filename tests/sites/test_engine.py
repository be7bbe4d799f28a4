"""Sites that fail, lie, arrive late or return, and a restarted server."""

import json
import shutil
from types import SimpleNamespace

import pytest

from fedvlp.core.state import Client
from fedvlp.sites.engine import SitesEngine
from fedvlp.sites.wire import Message, SiteError, SiteFacts, read_reply, read_request
from fedvlp.sites.worker import Site
from tests.helpers.assertions import assert_equal
from tests.helpers.images import CLASSES
from tests.helpers.shapes import unchecked
from tests.helpers.sites import (
    Deployment,
    InProcess,
    failure,
    in_process,
    make_site,
    method_config,
    metrics,
    plan_config,
    simulate,
)

BROKEN = "node-1"
"""The node of the site 'paint'."""


class Faulty(InProcess):
    """Sites with faults of ``BROKEN`` in training.

    Args:
        deployment: The deployment of the sites.
        faults: Functions from this transport and a training request to the reply, by round.
    """

    def __init__(self, deployment, faults):
        super().__init__(in_process(deployment.homes).sites)
        self.faults = faults
        self.usual = self.sites[BROKEN]
        self.sites[BROKEN] = self.handle

    def handle(self, request):
        message = read_request(request)
        fault = self.faults.get(message.values["round"]) if message.kind == "train" else None
        return self.usual(request) if fault is None else fault(self, request)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory, image_root):
    """Simulate two rounds of PromptFL, and return the trained tensors."""
    folder = tmp_path_factory.mktemp("simulated")
    return simulate(folder, method_config("promptfl"), image_root).run_state.server.deployed


@pytest.fixture
def deployment(tmp_path, image_root):
    return Deployment(tmp_path, image_root)


def raises(transport, request):
    raise SiteError("did not answer in 7 s")


def changed(**values):
    """Make a fault that changes values of the reply."""

    def fault(transport, request):
        reply = read_reply(transport.usual(request))
        return Message(reply.kind, {**reply.values, **values}, reply.tensors).to_bytes()

    return fault


def uploads(change):
    """Make a fault that changes the reply's tensors."""

    def fault(transport, request):
        reply = read_reply(transport.usual(request))
        tensors = {name: change(value) for name, value in reply.tensors.items()}
        return Message(reply.kind, reply.values, tensors).to_bytes()

    return fault


def test_a_failing_site_is_skipped_with_its_reason_and_the_others_continue(tmp_path, image_root, deployment):
    """Each round but the first has another fault; the site's stored state remains from the first round."""
    folder = tmp_path / "images"
    shutil.copytree(image_root / "paint", folder)
    home = make_site(deployment.homes[BROKEN], "paint", folder)
    personal_files = []

    def loses(transport, request):
        personal_files.append(read_request(request).values["personal"])
        for path in home.glob("runs/*/clients/*"):
            path.unlink()
        return transport.usual(request)

    def changes(transport, request):
        (folder / "star" / "0.png").rename(folder / "star" / "other.png")
        transport.usual = Site(home).handle
        return transport.usual(request)

    faults = [
        (raises, "did not answer in 7 s"),
        (lambda transport, request: b"\x00rubbish", "sent a message that is truncated or not from fedvlp"),
        (changed(round=50), "sent a reply that does not match the request"),
        (uploads(lambda value: value * float("nan")), "uploads NaN or infinity"),
        (changed(num_examples=10**9), "reports another number of training images than when it connected"),
        (changed(finite=False), "keeps NaN or infinity"),
        (changed(metrics={"loss": 10**400}), "sent a wrong metrics"),
        (loses, "has lost its personal tensors or optimizer state of an earlier round"),
        (changes, "has different images than at the start of the run"),
    ]
    config = plan_config(rounds=len(faults) + 1, steps=1, evaluate_every=len(faults) + 1)
    transport = Faulty(deployment, dict(enumerate((fault for fault, _ in faults), 1)))
    assert deployment.serve(config, transport) == 0
    for (_, reason), left_out in zip(faults, deployment.left_out(), strict=True):
        assert left_out[1] == "paint"
        assert reason in left_out[2]
    assert personal_files[0].startswith("000001-00000-"), "expected the file of round 1"


OTHER_CLIP = "has different CLIP weights than the server"


def test_a_site_that_cannot_be_prepared_ends_the_run_before_training(deployment, capsys):
    transport = in_process(deployment.homes)
    usual = transport.sites[BROKEN]
    kinds = []

    def refuses(request):
        kinds.append(read_request(request).kind)
        return failure("paint", OTHER_CLIP) if kinds[-1] == "prepare" else usual(request)

    transport.sites[BROKEN] = refuses
    assert deployment.serve(method_config("promptfl"), transport) == 1
    assert capsys.readouterr().err == f"fedvlp: error: The site 'paint' {OTHER_CLIP}. Nothing was trained.\n"
    assert kinds.count("prepare") == 1
    assert "train" not in kinds
    assert not list(deployment.folder.glob("deployed/*/*/"))


def test_a_late_site_joins_or_is_skipped_with_its_problem(deployment):
    transport = in_process(deployment.homes)
    late = {BROKEN: lambda request: failure("paint", OTHER_CLIP), "node-2": transport.sites["node-2"]}
    for node in late:
        del transport.sites[node]
    usual = transport.sites["node-0"]

    def brings(request):
        message = read_request(request)
        if message.kind == "train" and message.values["round"] == 1:
            transport.sites.update(late)
        return usual(request)

    transport.sites["node-0"] = brings
    assert deployment.serve(method_config("promptfl", rounds=3), transport) == 0
    away = "was not connected when the round began"
    assert deployment.left_out() == [
        *((1, name, away) for name in ("paint", "photo")),
        *((2, name, away) for name in ("paint", "photo")),
        (3, "paint", OTHER_CLIP),
    ]
    assert json.loads((deployment.run() / "sites.json").read_text())["sites"].keys() == {"ink", "photo"}


def test_a_failing_site_is_retried_if_the_policy_is_retry(deployment, simulated):
    tries = []

    def fault(transport, request):
        tries.append(request)
        return b"" if len(tries) == 1 else transport.usual(request)

    config = method_config("promptfl", on_failure="retry")
    assert deployment.serve(config, Faulty(deployment, {0: fault})) == 0
    assert deployment.left_out() == []
    assert len(tries) == 2
    assert_equal(deployment.prompts(), simulated)


def test_restarts_of_site_and_server_change_no_result(deployment, capsys):
    config = plan_config(rounds=2, steps=2, reset_optimizer=False)
    requests = []

    def restarts(transport, request):
        if request not in requests:  # not when the server repeats it after another preparation
            transport.usual = Site(deployment.homes[BROKEN]).handle
        requests.append(request)
        return transport.usual(request)

    def dies(transport, request):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        deployment.serve(config, Faulty(deployment, {0: restarts, 1: dies}))
    assert len(requests) == 2 * 2
    assert deployment.serve(config, checkpoint="last") == 0
    assert "after round 1" in capsys.readouterr().out
    assert deployment.left_out() == []
    expected = simulate(deployment.folder, config, deployment.root)
    assert_equal(deployment.prompts(), expected.run_state.server.deployed)
    # The server died while the sites evaluated the first round and trained in the second.
    assert metrics(deployment.run()) == metrics(expected.folder)


def test_the_server_waits_for_enough_sites_and_logs_every_reply(deployment, simulated, capsys, caplog, monkeypatch):
    config = method_config("promptfl", min_clients=3)
    transport = in_process(deployment.homes)
    away = transport.sites["node-2"]
    usual = transport.sites["node-0"]

    def leaves(request):
        if read_request(request).then is not None:
            transport.sites.pop("node-2", None)
        return usual(request)

    transport.sites["node-0"] = leaves

    def sleep(seconds):
        transport.sites.update({"node-0": usual, "node-2": away})

    monkeypatch.setattr("fedvlp.sites.registry.time.sleep", sleep)
    assert deployment.serve(config, transport) == 0
    printed = capsys.readouterr().out
    assert "waiting for 'photo': 2 of 3 sites are connected; 3 are needed" in printed
    assert "Round 2 has 2 of 3 updates. Sites that did not answer are asked again." in caplog.text
    assert printed.count("'ink' trained (") == 2
    assert_equal(deployment.prompts(), simulated)


def test_there_is_no_mean_if_a_site_cannot_evaluate(deployment):
    transport = in_process(deployment.homes)
    usual = transport.sites[BROKEN]

    def handle(request):
        if read_request(request).kind == "evaluate":
            raise SiteError("is ill")
        return usual(request)

    transport.sites[BROKEN] = handle
    assert deployment.serve(method_config("promptfl", rounds=1), transport) == 0
    (row,) = metrics(deployment.run())
    assert "validation/ink" in row
    assert "validation/paint" not in row
    assert "validation" not in row


RIGHT = {"correct": 2, "count": 3, "by_class": [[1, 1, 1], [1, 1, 2], [1, 0, 0]]}
WRONG = [  # reported values, and whether the site's accuracy and its counts by class are used
    ({}, True, True),
    ({"correct": 4}, False, False),
    ({"count": 2}, False, False),
    ({"by_class": RIGHT["by_class"][1:]}, True, False),
    ({"by_class": [[3, 2, 0], [0, 0, 3], [0, 0, 0]]}, True, False),
    ({"by_class": []}, True, False),
]


def read_evaluation(several_labels=False, **values):
    """Return the accuracies and the splits with counts by class that the server reads from a site's evaluation."""
    facts = SiteFacts(classes=CLASSES, counts={"train": 9, "validation": 3}, images="i", split="s", versions={})
    data = SimpleNamespace(facts={"paint": facts}, several_labels=several_labels)
    with unchecked():
        engine = SitesEngine(SimpleNamespace(data=data), Message("prepare"), None)
    values = {name: {"validation/paint": value, "validation/ink": value} for name, value in values.items()}
    found = engine._accuracies({Client(1, 1, 9, "paint"): Message("evaluated", values)}, CLASSES)
    return found, engine.class_counts.keys()


@pytest.mark.parametrize(("lie", "has_accuracy", "has_class_counts"), WRONG)
def test_inconsistent_counts_are_ignored(lie, has_accuracy, has_class_counts):
    found, counted = read_evaluation(**{**RIGHT, **lie})
    assert found == ({"validation/paint": pytest.approx(200 / 3)} if has_accuracy else {})
    assert counted == ({"validation/paint"} if has_class_counts else set())


def test_a_mean_over_labels_needs_all_images():
    assert read_evaluation(True, **RIGHT, precision=40.0)[0] == {"validation/paint": 40.0}
    assert read_evaluation(True, **{**RIGHT, "count": 2}, precision=40.0)[0] == {}
    assert read_evaluation(True, **RIGHT) == ({}, set())


def test_options_of_a_simulation_are_rejected(deployment, capsys):
    assert deployment.serve(method_config("promptfl", personal_on_disk=True), InProcess({})) == 1
    assert "trainer.clients.personal_on_disk" in capsys.readouterr().err
