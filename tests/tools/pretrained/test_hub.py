"""A run's model on a stand-in of the hub: what is there, what it is loaded as, and what refusals say."""

from __future__ import annotations

import pytest
import torch
from huggingface_hub import ModelCard

import fedvlp
from fedvlp import UserError
from fedvlp.commands.cli import main
from tests.helpers.model_hub import model_hub

# huggingface_hub uploads a file by an argument that its own HTTP client wants to be called otherwise.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with model_hub(monkeypatch, tmp_path / "hub cache") as server:
        yield server


def logits_of(classifier):
    size = classifier.image_size
    return classifier(torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(5)))


def test_what_is_pushed_is_loaded_as_it_was(finished_run, hub, clip, capsys):
    assert main(["push", str(finished_run), "ann/fig.s-1", "--license", "cc-by-4.0"]) == 0
    assert f"{hub.address}/ann/fig.s-1\n" in capsys.readouterr().out
    files = hub.files["ann/fig.s-1"]
    assert {"prompts.safetensors", "README.md", "summary.json", "config.yaml"} == set(files)
    card = ModelCard(files["README.md"].decode())
    assert card.data.license == "cc-by-4.0"
    assert card.data.library_name == "fedvlp"
    hub.requests.clear()
    loaded = fedvlp.from_pretrained("hf://ann/fig.s-1", clip=clip)
    assert torch.equal(logits_of(loaded), logits_of(fedvlp.from_pretrained(finished_run, clip=clip)))
    # The hub itself is asked first, whether it answers.
    assert hub.requests[0] == "HEAD /"
    assert {request.split("/")[-1] for request in hub.requests[1:]} == {"prompts.safetensors"}
    assert not hub.private


def test_a_revision_is_loaded_and_a_missing_one_refused(finished_run, hub, clip):
    fedvlp.push_to_hub(finished_run, "ann/figs", private=True)
    assert hub.private == {"ann/figs"}
    commit = hub.commits["ann/figs"]
    assert fedvlp.from_pretrained(f"hf://ann/figs@{commit}", clip=clip).class_names
    with pytest.raises(UserError, match=r"hf://ann/figs@v9 could not be loaded: .*Revision Not Found"):
        fedvlp.from_pretrained("hf://ann/figs@v9")


def test_without_network_the_cached_model_is_loaded(finished_run, hub, clip):
    fedvlp.push_to_hub(finished_run, "ann/figs")
    fedvlp.from_pretrained("hf://ann/figs", clip=clip)
    hub.status = 503
    assert fedvlp.from_pretrained("hf://ann/figs", clip=clip).class_names


@pytest.mark.parametrize("prepare", ["nothing", "other"])
def test_what_is_not_there_is_refused(hub, prepare):
    if prepare == "other":
        hub.files["ann/figs"] = {"model.safetensors": b""}
    with pytest.raises(UserError, match=r"Repository Not Found" if prepare == "nothing" else "Entry Not Found"):
        fedvlp.from_pretrained("hf://ann/figs")


def test_a_public_repository_is_not_taken_for_a_private_one(finished_run, hub):
    hub.files["ann/figs"] = {}
    with pytest.raises(UserError, match="ann/figs is there already and public"):
        fedvlp.push_to_hub(finished_run, "ann/figs", private=True)
    assert hub.files["ann/figs"] == {}


@pytest.mark.parametrize(
    ("status", "message"),
    [(401, "Make a token"), (403, "Make a token"), (500, "500")],
)
def test_what_the_hub_refuses_is_explained(finished_run, hub, status, message):
    hub.status = status
    with pytest.raises(UserError, match=f"ann/figs was not pushed: .*{message}"):
        fedvlp.push_to_hub(finished_run, "ann/figs")
    assert not hub.files
