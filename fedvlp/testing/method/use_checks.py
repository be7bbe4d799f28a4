"""How a trained method is used: what is prepared of an image, what a file of prompts gives, how it is described."""

from __future__ import annotations

import json
from typing import Any

import torch

from fedvlp.core.phases import check_phases
from fedvlp.runs.checkpoint import read_model
from fedvlp.runs.run_folder import load_trained
from fedvlp.testing.failures import ContractError, require
from fedvlp.testing.method.runs import MethodContract, federation_of
from fedvlp.training.evaluation import evaluate
from fedvlp.utils.signatures import constructor_arguments


def prepared_constants_give_the_same_as_images(contract: MethodContract) -> None:
    """What `precompute` computes once stands for the images themselves."""
    model = contract.whole.run.model
    size = model.clip.image_size
    images = torch.rand(5, 3, size, size, generator=torch.Generator().manual_seed(0))
    model.eval()
    constants = model.precompute(images)
    same = torch.equal(model(images), model(constants))
    require(
        same,
        f"{contract.name}: forward must give the same bits for images and for what precompute makes of them. Ask "
        "self.precomputed(inputs) for them, and let precompute depend on nothing that is trained.",
    )
    for name, value in constants.items():
        require(len(value) == 5, f"{contract.name}: precompute gives {name!r} of {len(value)} images for 5.")
        require(
            not value.requires_grad, f"{contract.name}: {name!r} of precompute has a gradient; use torch.no_grad()."
        )


def a_deployed_file_scores_the_same(contract: MethodContract) -> None:
    """A fresh method of another seed, with the run's prompts.safetensors, is as accurate as the run says."""
    whole = contract.whole
    name = contract.name
    prompts = whole.folder / "prompts.safetensors"
    fresh = contract.build("--seed_everything=7")
    federation = federation_of(fresh)
    federation._attach(fresh.model, fresh.datamodule)
    deployed, personal = load_trained(prompts, fresh.model)
    scores = evaluate(fresh.model, fresh.datamodule, federation.fabric, deployed, personal)
    path = read_model(prompts)["class_path"]
    require(path.endswith(type(fresh.model).__name__), f"{name}: prompts.safetensors says that it is of {path}.")
    table = json.loads((whole.folder / "summary.json").read_text(encoding="utf-8"))["accuracy"]
    expected = table["last round (2)" if check_phases(fresh.model) else "zero-shot CLIP"]
    require(
        expected == scores,
        f"{name}: loaded from prompts.safetensors it must be as accurate as after training, {expected}, but it is "
        f"{scores}. Save all that forward depends on, or make it of the options; draw constants by a seed among them.",
    )


def it_describes_itself_in_json(contract: MethodContract) -> None:
    """The description, by which runs are compared, holds the classes and the CLIP."""
    model = contract.whole.run.model
    described = _as_json(contract.name, model.describe())
    takes_classes = "class_names" in constructor_arguments(type(model))
    names = contract.whole.run.datamodule.class_names
    recorded = f"{contract.name} must call super().__init__(...), which records its options."
    require(not takes_classes or described.get("class_names") == names, f"{recorded} class_names is not among them.")
    clip = described.get("clip")
    is_named = isinstance(clip, dict) and clip.get("name") == model.clip.spec.name
    require(is_named, f"{contract.name} must record its CLIP: give it to set_backbone. describe() has clip: {clip}.")


def _as_json(name: str, described: Any) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(json.dumps(described))
    except (TypeError, ValueError) as error:
        raise ContractError(f"{name}: describe() must give what JSON can hold; {error}.") from error
    return content
