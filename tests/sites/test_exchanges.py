"""Requests that share an exchange, and requests and replies that are too large for the memory together."""

from types import SimpleNamespace

import pytest

from fedvlp.runs.checkpoint import load_checkpoint
from fedvlp.sites import engine
from fedvlp.sites.registry import SiteRegistry
from fedvlp.sites.wire import Message, SiteError, join, read_request, split
from tests.helpers.assertions import assert_equal
from tests.helpers.shapes import unchecked
from tests.helpers.sites import Deployment, InProcess, failure, in_process, method_config, metrics, plan_config


@pytest.fixture
def deployment(tmp_path, image_root):
    return Deployment(tmp_path, image_root)


def served(deployment, config, into="deployed"):
    """Run the server, and return the kinds of the first site's requests in each exchange."""
    transport = in_process(deployment.homes)
    kinds = []
    usual = transport.sites["node-0"]

    def records(request):
        kinds.append("+".join(read_request(part).kind for part in split(request)))
        return usual(request)

    transport.sites["node-0"] = records
    assert deployment.serve(config, transport, into) == 0
    return kinds


def test_a_round_needs_one_exchange_per_phase(deployment):
    before = ["describe", "prepare", "evaluate"]
    assert served(deployment, method_config("promptfl", rounds=3)) == [
        *before,
        *("train", "train+evaluate", "train+evaluate", "evaluate", "leave"),
    ]


def test_shared_exchanges_change_no_result(deployment, monkeypatch):
    config = plan_config(rounds=3, steps=2, reset_optimizer=False, cohort_size=2, evaluate_every=2)
    shared = served(deployment, config, "shared")
    monkeypatch.setattr(engine, "MAX_JOINED_BYTES", 0)
    separate = served(deployment, config, "separate")
    assert "train+evaluate" in shared
    assert "train+evaluate" not in separate
    assert len(shared) < len(separate)
    assert metrics(deployment.run("shared")) == metrics(deployment.run("separate"))
    assert_equal(deployment.prompts("shared"), deployment.prompts("separate"))
    one, other = (sorted(deployment.run(name).glob("checkpoints/*")) for name in ("shared", "separate"))
    for first, second in zip(one, other, strict=True):
        assert_equal(load_checkpoint(first)[0].server.shared, load_checkpoint(second)[0].server.shared)


def test_rounds_wait_for_accuracies_if_a_callback_may_end_the_run(deployment):
    stopping = {"class_path": "lightning.pytorch.callbacks.EarlyStopping"}
    stopping["init_args"] = {"monitor": "validation", "mode": "max", "patience": 9}
    kinds = served(deployment, method_config("promptfl", callbacks=[stopping]))
    assert kinds[3:] == ["train", "evaluate", "train", "evaluate", "leave"]


def test_a_site_that_refuses_to_train_is_still_evaluated(deployment):
    transport = in_process(deployment.homes)
    usual = transport.sites["node-1"]

    def refuses(request):
        parts = split(request)
        return usual(request) if len(parts) == 1 else join([failure("paint", "is ill"), usual(parts[1])])

    transport.sites["node-1"] = refuses
    assert deployment.serve(method_config("promptfl"), transport) == 0
    assert deployment.left_out() == [(2, "paint", "is ill")]
    assert all("validation" in row for row in metrics(deployment.run()))


def test_a_run_ends_if_too_few_sites_answer_four_times(deployment, capsys):
    transport = in_process(deployment.homes)
    usual = transport.sites["node-1"]
    rounds = []

    def hangs(request):
        if read_request(request).kind != "train":
            return usual(request)
        rounds.append(read_request(request).values["round"])
        raise SiteError("did not answer in 7 s")

    transport.sites["node-1"] = hangs
    assert deployment.serve(method_config("promptfl", min_clients=3), transport) == 1
    assert "the updates of 2 of 3 clients are usable, and 3 are needed" in capsys.readouterr().err
    assert rounds == [0] * 4


def test_requests_are_encoded_one_at_a_time(monkeypatch):
    events = []
    encode = Message.to_bytes

    def to_bytes(message):
        events.append("encoded")
        return encode(message)

    monkeypatch.setattr(Message, "to_bytes", to_bytes)

    def answer(request):
        events.append("sent")
        return encode(Message("left"))

    transport = InProcess(dict.fromkeys("abc", answer))
    with unchecked():
        registry = SiteRegistry(
            transport, SimpleNamespace(reply_seconds=1.0), "run", {}, nodes=dict(zip("xyz", "abc", strict=True))
        )
        replies = registry.exchange({name: Message("leave", {"run": "run"}) for name in "xyz"})
    assert [reply.kind for reply in replies.values()] == ["left"] * 3
    assert events == ["encoded", "sent"] * 3
