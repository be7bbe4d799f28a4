"""Messages arrive unchanged or are rejected, whatever a foreign sender puts into them."""

import random

import pytest
import torch
from safetensors.torch import save

from fedvlp.sites import wire
from fedvlp.sites.wire import REPLIES, REQUESTS, Message, WireError, read_reply, read_request
from tests.helpers.sites import description

TRAINED = {
    "round": 3,
    "phase": 1,
    "num_examples": 17,
    "metrics": {"loss": 0.1, "cross_entropy": float("inf")},
    "finite": True,
    "retried": "",
    "personal": "000001-00003-0.safetensors",
    "optimizer": "",
}
TENSORS = {
    "prompt": torch.tensor([[0.1, -2.5, 3e-39], [float("nan"), 1.0, 7.0]]),
    "half": torch.tensor([1.5, -3.0], dtype=torch.bfloat16),
    "none": torch.zeros(0, 4),
    "scalar": torch.tensor([5]),
}
NOISE = {"clip_norm": 0.1, "noise_multiplier": 2.0, "seed": None}
OUT_OF_RANGE = [1e308, 1e-200, -1.0, float("nan"), True]


def message():
    return Message("trained", TRAINED, TENSORS).to_bytes()


def test_a_message_is_restored_bit_for_bit():
    found = read_reply(message())
    assert (found.kind, found.values) == ("trained", TRAINED)
    assert found.tensors.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        assert found.tensors[name].dtype == value.dtype
        assert found.tensors[name].shape == value.shape
        assert torch.equal(found.tensors[name].view(torch.uint8), value.view(torch.uint8))


def test_tensors_that_share_memory_are_sent_as_copies():
    whole = torch.arange(6.0)
    found = read_reply(Message("trained", TRAINED, {"a": whole[::2], "b": whole}).to_bytes())
    assert found.tensors["a"].tolist() == [0, 2, 4]
    assert found.tensors["b"].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("region", ["start", "anywhere"])
def test_a_damaged_message_is_rejected_or_still_valid(region):
    draws = random.Random(4)
    whole = message()
    rejected = 0
    for _ in range(1500):
        damaged = bytearray(whole)
        for _ in range(draws.choice([1, 2, 9])):
            most = 40 if region == "start" else len(whole)
            damaged[draws.randrange(most)] = draws.randrange(256)
        try:
            found = read_reply(bytes(damaged))
        except WireError:
            rejected += 1
            continue
        assert found.values.keys() == REPLIES[found.kind].model_fields.keys()
    assert rejected > 700


def test_invalid_bytes_are_rejected():
    cut = [message()[:count] for count in (0, 1, 7, 8, 9, 60, -1, -9)]
    others = [message() + b"x", b"\x80\x04K\x01.", b"{}", b"\xff" * 64, b"\x02" + bytes(7) + b"[]"]
    for content in (*cut, *others):
        with pytest.raises(WireError, match="sent"):
            read_reply(content)
    for text in ('{"kind": "described", "x": ' + "[" * 5000 + "]" * 5000 + "}", "[1]"):
        with pytest.raises(WireError, match="can't be decoded"):
            read_reply(save({}, {"fedvlp": text}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("round", -1),
        ("round", True),
        ("phase", 2**63),
        ("num_examples", "9"),
        ("metrics", {"loss": "0.1"}),
        ("metrics", {str(number): 0.0 for number in range(2000)}),
        ("metrics", {"loss": 10**400}),
        ("metrics", {"x" * 256: 0.0}),
        ("finite", 1),
        ("retried", "x" * 3000),
        ("personal", "/etc/passwd"),
        ("optimizer", ".hidden"),
    ],
)
def test_an_invalid_value_is_rejected_without_being_shown(field, value):
    with pytest.raises(WireError, match=f"^sent a wrong {field}: ") as caught:
        read_reply(Message("trained", {**TRAINED, field: value}, {}).to_bytes())
    assert "passwd" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("data", {"classes": [str(number) for number in range(100_000)]}),
        ("data", {"split_seed": 10**400}),
        ("run", "x" * 3000),
        ("run", "run\n  signature: one"),
        ("fingerprint", "0f1e\x1b[2K"),
        ("sites", ["ink", "paint\u2028photo"]),
        ("sites", ["ink", "ink"]),
        *(("noise", {**NOISE, size: value}) for size in ("clip_norm", "noise_multiplier") for value in OUT_OF_RANGE),
        ("noise", {**NOISE, "clip_norm": 0}),
        ("noise", {**NOISE, "noise_multiplier": "1"}),
        ("noise", {**NOISE, "more": 1}),
    ],
)
def test_too_large_or_unprintable_requests_are_rejected(field, value):
    with pytest.raises(WireError, match=f"sent a wrong {field}: ") as caught:
        read_request(Message("describe", {"run": "run", **description(), field: value}).to_bytes())
    assert str(caught.value).isprintable()


def test_noise_of_any_useful_size_is_accepted():
    for size in (0, 1e-9, 1e9):
        values = {"run": "run", **description(noise={**NOISE, "noise_multiplier": size})}
        assert read_request(Message("describe", values).to_bytes()).values == values


@pytest.mark.parametrize(
    ("kind", "values", "field"),
    [
        ("refused", {"name": "ink", "reason": "has no image\nround 9: all is well"}, "reason"),
        ("waiting", {"name": "ink\r", "reason": ""}, "name"),
        ("evaluated", {"correct": {"validation/ink\n": 1}, "count": {}, "by_class": {}}, "correct"),
        ("evaluated", {"correct": {}, "count": {}, "by_class": {"ink": [[1, 2]]}}, "by_class"),
    ],
)
def test_a_site_cannot_add_lines_or_columns_to_the_servers_output(kind, values, field):
    with pytest.raises(WireError, match=f"sent a wrong {field}: "):
        read_reply(Message(kind, values).to_bytes())


def test_missing_and_unknown_fields_are_rejected():
    missing = {name: value for name, value in TRAINED.items() if name != "finite"}
    with pytest.raises(WireError, match="sent no finite"):
        read_reply(Message("trained", missing).to_bytes())
    with pytest.raises(WireError, match=r"^sent 1 unknown field\(s\)"):
        read_reply(Message("trained", {**TRAINED, "more": 1}).to_bytes())
    with pytest.raises(WireError, match="can't be decoded"):
        read_reply(Message("trained", {**TRAINED, **dict.fromkeys(map(str, range(100)))}).to_bytes())
    # A request is no reply, and a reply is no request.
    for read, content in ((read_request, message()), (read_reply, Message("leave", {"run": "a"}).to_bytes())):
        with pytest.raises(WireError, match="unknown kind"):
            read(content)
    assert not REQUESTS.keys() & REPLIES.keys()


def test_sizes_are_bounded_before_anything_is_parsed(monkeypatch):
    monkeypatch.setattr(wire, "MAX_BYTES", 200)
    with pytest.raises(WireError, match="more than 200 bytes"):
        read_reply(message())
    monkeypatch.undo()
    monkeypatch.setattr(wire, "MAX_HEADER_BYTES", 200)
    with pytest.raises(WireError, match="truncated"):
        read_reply(message())


def test_two_messages_travel_together_and_stay_apart():
    second = Message("evaluated", {"correct": {"a": 1}, "count": {"a": 2}, "by_class": {}})
    joined = Message("trained", TRAINED, TENSORS, then=second).to_bytes()
    assert wire.split(joined) == [message(), second.to_bytes()]
    found = read_reply(joined)
    assert (found.kind, found.values, found.then) == ("trained", TRAINED, second)
    nested = wire.join([message(), joined])
    for damaged in (joined[:12], joined[:-1], joined[:16] + joined[17:], wire.JOINED, nested, nested[8:]):
        with pytest.raises(WireError):
            read_reply(damaged)


def test_a_large_reply_stays_on_the_disk(tmp_path):
    large = {"prompt": torch.arange(300_000.0), "half": torch.ones(7, dtype=torch.bfloat16)}
    content = Message("trained", TRAINED, large).to_bytes()
    found = read_reply(content, tmp_path)
    assert not list(tmp_path.iterdir()), "the file has no name, so that a killed server leaves nothing"
    assert all(torch.equal(found.tensors[name], value) for name, value in large.items())
    with pytest.raises(WireError, match="can't be decoded"):
        read_reply(content[:-1], tmp_path)
    missing = tmp_path / "missing"
    assert read_reply(message(), missing).kind == "trained", "a small reply needs no folder"
    with pytest.raises(FileNotFoundError):
        read_reply(content, missing)
