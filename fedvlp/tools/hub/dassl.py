"""Prompts that CoOp, MaPLe or PromptFL left in Dassl's checkpoints, as a trained model of fedvlp.

Dassl's files are pickles, with objects of its schedulers. They are read by :func:`.read_inert`, which runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import fedvlp
from fedvlp.clip import CLIP, CLIPSpec, load_clip
from fedvlp.core.module import FederatedModule
from fedvlp.core.state import State
from fedvlp.pretrained.classifier import Classifier
from fedvlp.runs.trained_tensors import check_trained
from fedvlp.utils.errors import UserError
from fedvlp.utils.inert_archive import read_inert

MAPLE_WORDS = "a photo of a"
"""What MaPLe's first prompt starts from, of which those words stay that it has no vectors for."""
FIXED = ("token_prefix", "token_suffix")
"""Embeddings of what stands before and behind a prompt; Dassl leaves them out when it loads a file, too."""


class Found(NamedTuple):
    """What a checkpoint holds of a prompt learner.

    Attributes:
        learned: tensors by the names that the prompt learner gives them.
        fixed: those of the words around the prompt, which follow from the class names.
        others: how many tensors of the frozen CLIP there are.
        epoch: after how many epochs it was saved; None where it does not say.
    """

    learned: State
    fixed: State
    others: int
    epoch: int | None


def convert_dassl(
    path: Path, folder: Path, class_names: Sequence[str], clip: CLIPSpec | CLIP | str, class_position: str = "end"
) -> list[str]:
    """Writes the prompts of a checkpoint as a trained model, and returns what became of each tensor, a line each.

    Args:
        path: Dassl's ``model.pth.tar-50`` or ``model-best.pth.tar``.
        folder: gets ``prompts.safetensors``.
        class_names: the classes, in the order of Dassl's labels.
        clip: the frozen CLIP that it was trained with.
        class_position: where CoOp put the class's name: behind the prompt (end), in its middle, or before it (front).

    Raises:
        UserError: if the file is none of these, or of other classes or another CLIP.
    """
    found = _read(path)
    backbone = load_clip(clip)
    length = len(found.learned["ctx"])
    words = _check_classes(path, found.fixed, class_names, backbone, length)
    method: FederatedModule
    if "proj.weight" in found.learned:
        depth = 1 + sum(name.startswith("compound_prompts_text.") for name in found.learned)
        method = fedvlp.FedMaPLe(list(class_names), backbone, length, depth, words)
        state = _maple(found.learned, depth)
    else:
        method = fedvlp.PromptFL(list(class_names), backbone, prompt_length=length, class_position=class_position)
        state = {"prompt": found.learned["ctx"].float()}
    check_trained(path, state, {}, method)
    method.load_state(state)
    Classifier(method).save_pretrained(folder)
    return _report(found, state, method, class_names)


def _read(path: Path) -> Found:
    """Reads a checkpoint, and tells what was learned from what was frozen."""
    if not path.is_file():
        raise UserError(f"There is no file {path}.")
    content = read_inert(path)
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{path} holds no state dict. Pass a file such as prompt_learner/model.pth.tar-50 of Dassl.")
    names = {name.removeprefix("module."): value for name, value in state.items()}
    has_prefix = any(name.startswith("prompt_learner.") for name in names)
    own = {
        name.removeprefix("prompt_learner."): value
        for name, value in names.items()
        if not has_prefix or name.startswith("prompt_learner.")
    }
    learned = {name: value for name, value in own.items() if name not in FIXED}
    _check_learned(path, learned)
    fixed = {name: value for name, value in own.items() if name in FIXED}
    epoch = content.get("epoch")
    return Found(learned, fixed, len(names) - len(own), epoch if isinstance(epoch, int) else None)


def _check_learned(path: Path, learned: Mapping[str, Tensor]) -> None:
    """Sees that the tensors are those of a method that is known."""
    depth = sum(name.startswith("compound_prompts_text.") for name in learned)
    maple = {"ctx", "proj.weight", "proj.bias"} | {f"compound_prompts_text.{i}" for i in range(depth)}
    for kind in ("weight", "bias"):
        maple |= {f"compound_prompt_projections.{i}.{kind}" for i in range(depth)}
    if set(learned) not in ({"ctx"}, maple):
        shown = ", ".join(sorted(learned)[:6]) or "none"
        raise UserError(f"{path} should hold the prompt of CoOp, PromptFL or MaPLe; its tensors are {shown}.")
    if learned["ctx"].ndim != 2:
        raise UserError(f"{path} has a prompt for each class (CSC), which no method here has. Train with one for all.")


def _maple(learned: Mapping[str, Tensor], depth: int) -> State:
    """Returns FedMaPLe's tensors: prompts and maps of the first block, and those of the deeper ones behind them."""
    deeper = range(depth - 1)
    prompts = [learned["ctx"], *(learned[f"compound_prompts_text.{i}"] for i in deeper)]
    maps = ["proj", *(f"compound_prompt_projections.{i}" for i in deeper)]
    return {
        "prompts": torch.stack(prompts).float(),
        "couplings.weight": torch.stack([learned[f"{name}.weight"].T for name in maps]).float(),
        "couplings.bias": torch.stack([learned[f"{name}.bias"] for name in maps]).float(),
    }


def _check_classes(
    path: Path, fixed: Mapping[str, Tensor], class_names: Sequence[str], clip: CLIP, length: int
) -> str | None:
    """Compares the words behind the prompt with the class names, as far as the file has them.

    Returns:
        The words that MaPLe's prompt takes the place of the first of; None if there are none behind the prompt.
    """
    suffix = fixed.get("token_suffix")
    if suffix is None:
        return MAPLE_WORDS
    if len(suffix) != len(class_names):
        raise UserError(f"{path} is of {len(suffix)} classes; {len(class_names)} were given. Give all of them.")
    wrong = ""
    for words in (None, MAPLE_WORDS):
        rest = (words or "").split()[length:]
        wrong = _first_wrong(suffix.float(), [" ".join([*rest, name]) for name in class_names], clip, length)
        if not wrong:
            return words
    raise UserError(
        f"{path} was trained with another CLIP or other classes than were given, or in another order; the first that "
        f"is not at its place is {wrong!r}. Give the classes in the order of Dassl's labels."
    )


def _first_wrong(suffix: Tensor, texts: Sequence[str], clip: CLIP, length: int) -> str:
    """Returns the first text whose embeddings are not those of the file; empty if there is none."""
    prompt = " ".join(["X"] * length)
    ids = clip.tokenizer([f"{prompt} {text.replace('_', ' ')}." for text in texts])[:, 1 + length :]
    for number, text in enumerate(texts):
        expected = clip.text.embed(ids[number])
        if expected.shape != suffix[number].shape or not torch.allclose(expected, suffix[number], rtol=0, atol=1e-3):
            return text
    return ""


def _report(found: Found, state: State, method: FederatedModule, class_names: Sequence[str]) -> list[str]:
    """Returns a line for what came over, and one for each thing that did not."""
    name = type(method).__name__
    lines = [name if found.epoch is None else f"{name}, of epoch {found.epoch}"]
    for name, value in found.learned.items():
        lines.append(f"{name} {_shape(value)}: came over")
    for name, value in state.items():
        lines.append(f"-> {name} {_shape(value)}")
    for name, value in found.fixed.items():
        lines.append(f"{name} {_shape(value)}: left out, as the class names and CLIP give it again")
    if found.fixed:
        lines.append(f"the {len(class_names)} class names are those that it was trained with")
    if found.others:
        lines.append(f"{found.others} tensors of the frozen CLIP: left out, as CLIP is loaded by its name")
    lines.append("optimizer and scheduler: left out")
    if hyphened := [name for name in class_names if "-" in name]:
        lines.append(f"hyphens are read as spaces here and not in Dassl, so features may differ: {', '.join(hyphened)}")
    return lines


def _shape(value: Tensor) -> str:
    return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
