"""Models on a hub, with an imitation of its client that has the real signatures and stores repositories as folders."""

import shutil
from types import SimpleNamespace
from unittest.mock import create_autospec

import huggingface_hub
import pytest
import torch
from huggingface_hub import ModelCard

import fedvlp
from fedvlp import UserError
from fedvlp.commands.cli import main


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Imitate the client, with a folder of all repositories and the names of private ones."""
    api = create_autospec(huggingface_hub.HfApi, instance=True)
    api.folder, api.hidden = tmp_path / "hub", set()

    def create(name, private, exist_ok):
        if not (api.folder / name).exists():
            (api.folder / name).mkdir(parents=True)
            api.hidden |= {name} if private else set()
        return f"https://hub/{name}"

    def upload(repo_id, folder_path, commit_message):
        shutil.copytree(folder_path, api.folder / repo_id, dirs_exist_ok=True)

    def download(name, file, revision):
        path = api.folder / name / file
        if revision not in (None, "v1") or not path.is_file():
            raise FileNotFoundError("Entry Not Found")
        return str(path)

    api.create_repo.side_effect = create
    api.upload_folder.side_effect = upload
    api.hf_hub_download.side_effect = download
    api.model_info.side_effect = lambda name: SimpleNamespace(private=name in api.hidden)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: api)
    monkeypatch.setattr("fedvlp.tools.pretrained.check_hub", lambda: None)
    return api


def logits_of(classifier):
    size = classifier.image_size
    return classifier(torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(5)))


def test_a_pushed_model_is_loaded_unchanged(finished_run, hub, clip, capsys):
    assert main(["push", str(finished_run), "ann/fig.s-1", "--license", "cc-by-4.0"]) == 0
    assert "https://hub/ann/fig.s-1\n" in capsys.readouterr().out
    folder = hub.folder / "ann" / "fig.s-1"
    names = {path.name for path in folder.iterdir()}
    assert names == {"prompts.safetensors", "README.md", "summary.json", "config.yaml"}
    card = ModelCard((folder / "README.md").read_text())
    assert (card.data.license, card.data.library_name) == ("cc-by-4.0", "fedvlp")
    expected = logits_of(fedvlp.from_pretrained(finished_run, clip=clip))
    assert torch.equal(logits_of(fedvlp.from_pretrained("hf://ann/fig.s-1", clip=clip)), expected)
    assert torch.equal(logits_of(fedvlp.from_pretrained("hf://ann/fig.s-1@v1", clip=clip)), expected)
    with pytest.raises(UserError, match=r"hf://ann/fig.s-1@v9 could not be loaded: Entry Not Found"):
        fedvlp.from_pretrained("hf://ann/fig.s-1@v9")


def test_a_private_push_to_a_public_repository_is_rejected(finished_run, hub):
    fedvlp.push_to_hub(finished_run, "ann/figs", private=True)
    fedvlp.push_to_hub(finished_run, "ann/figs", private=True)
    (hub.folder / "ann" / "open").mkdir()
    with pytest.raises(UserError, match="ann/open exists and is public"):
        fedvlp.push_to_hub(finished_run, "ann/open", private=True)
    assert not list((hub.folder / "ann" / "open").iterdir())


@pytest.mark.parametrize(("status", "message"), [(403, "refused Create a token"), (500, "refused")])
def test_errors_of_the_hub_are_explained(finished_run, hub, status, message):
    hub.create_repo.side_effect = OSError("refused")
    hub.create_repo.side_effect.response = SimpleNamespace(status_code=status)
    with pytest.raises(UserError, match=f"ann/figs was not pushed: {message}"):
        fedvlp.push_to_hub(finished_run, "ann/figs")
