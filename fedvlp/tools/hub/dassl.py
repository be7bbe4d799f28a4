"""Prompts that CoOp, MaPLe or PromptFL left in Dassl's checkpoints, as a trained model of fedvlp.

Dassl's files hold objects of PyTorch's optimizers and schedulers beside tensors, so those classes alone are loaded too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, optim
from torch.optim import lr_scheduler

import fedvlp
from fedvlp.clip import CLIP, CLIPSpec, load_clip
from fedvlp.clip.prompted_text import ClassPosition
from fedvlp.core.module import FederatedModule
from fedvlp.core.state import State
from fedvlp.runs.checkpoint import check_trained
from fedvlp.tools.pretrained.classifier import Classifier
from fedvlp.utils.errors import UserError

MAPLE_WORDS = "a photo of a"
"""What MaPLe's first prompt starts from, of which those words stay that it has no vectors for."""
FIXED = ("token_prefix", "token_suffix")
"""Embeddings of what precedes and follows a prompt; Dassl leaves them out when it loads a file, too."""


def read_classes(path: Path) -> list[str]:
    """The lines of a text file, without empty ones; at least one, and none twice."""
    names = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not names or len(set(names)) < len(names):
        raise UserError(f"Expected a class on each line of {path}, none of them twice; got {len(names)} lines.")
    return names


def convert_dassl(
    path: Path,
    folder: Path,
    class_names: Sequence[str],
    clip: CLIPSpec | CLIP | str,
    class_position: ClassPosition = "end",
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
    content = _read(path)
    state_dict = {name.removeprefix("module."): value for name, value in content.get("state_dict", content).items()}
    # A file of the whole model has the frozen CLIP as well, and the prompt learner's names begin with its own.
    prefix = "prompt_learner." if any(name.startswith("prompt_learner.") for name in state_dict) else ""
    of_prompt = {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}
    learned = {name: value for name, value in of_prompt.items() if name not in FIXED}
    _check_learned(path, learned)
    backbone = load_clip(clip)
    length = len(learned["ctx"])
    words = _check_classes(path, of_prompt.get("token_suffix"), class_names, backbone, length)
    method: FederatedModule
    if "proj.weight" in learned:
        # Dassl has the first block's prompt apart from those of the deeper ones.
        depth = 1 + sum(name.startswith("compound_prompts_text.") for name in learned)
        method = fedvlp.FedMaPLe(list(class_names), backbone, prompt_length=length, depth=depth, init_words=words)
        state = _maple(learned, depth)
    else:
        method = fedvlp.PromptFL(list(class_names), backbone, prompt_length=length, class_position=class_position)
        state = {"prompt": learned["ctx"].float()}
    check_trained(path, state, {}, method)
    method.load_state(state)
    Classifier(method).save_pretrained(folder)
    epoch = f", of epoch {content['epoch']}" if isinstance(content.get("epoch"), int) else ""
    lines = [f"{type(method).__name__}{epoch}"]
    lines += [f"{name} {_shape(value)}: taken over" for name, value in learned.items()]
    lines += [f"-> {name} {_shape(value)}" for name, value in state.items()]
    lines += [f"{name}: left out, as it follows from class names and CLIP" for name in of_prompt if name in FIXED]
    if num_others := len(state_dict) - len(of_prompt):
        lines.append(f"{num_others} tensors of the frozen CLIP: left out, as CLIP is loaded by its name")
    return lines


def _read(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, with a state dict in it or as one."""
    if not path.is_file():
        raise UserError(f"There is no file {path}.")
    classes = [each for each in (*vars(optim).values(), *vars(lr_scheduler).values()) if isinstance(each, type)]
    try:
        # Only these classes may be made from the file; none of them runs code that is in it.
        with torch.serialization.safe_globals([*classes, defaultdict, dict]):
            content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises nearly every type
        reason = str(error).partition("\n")[0]
        raise UserError(f"{path} can't be read as a checkpoint of PyTorch: {reason}") from error
    state_dict = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(state_dict, dict) or not all(isinstance(value, Tensor) for value in state_dict.values()):
        raise UserError(f"{path} holds no state dict. Pass a file such as prompt_learner/model.pth.tar-50 of Dassl.")
    return content


def _check_learned(path: Path, learned: Mapping[str, Tensor]) -> None:
    """Checks that the tensors are those of a known method."""
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
    """FedMaPLe's tensors: prompts and maps of the first block, and those of the deeper ones behind them."""
    deeper = range(depth - 1)
    # A map of ours multiplies from the right, a torch.nn.Linear from the left.
    prompts = [learned["ctx"], *(learned[f"compound_prompts_text.{i}"] for i in deeper)]
    maps = ["proj", *(f"compound_prompt_projections.{i}" for i in deeper)]
    return {
        "prompts": torch.stack(prompts).float(),
        "couplings.weight": torch.stack([learned[f"{name}.weight"].T for name in maps]).float(),
        "couplings.bias": torch.stack([learned[f"{name}.bias"] for name in maps]).float(),
    }


def _check_classes(
    path: Path, suffix: Tensor | None, class_names: Sequence[str], clip: CLIP, length: int
) -> str | None:
    """Compares the words behind the prompt with the class names, as far as the file has them.

    Returns:
        The words that MaPLe's prompt takes the place of the first of; None if there are none behind the prompt.
    """
    # Embeddings of the class names are in the file, so a list in another order can be told from the right one.
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
    """The first string whose embeddings are not those of the file; empty if there is none."""
    prompt = " ".join(["X"] * length)
    ids = clip.tokenizer([f"{prompt} {text.replace('_', ' ')}." for text in texts])[:, 1 + length :]
    for number, text in enumerate(texts):
        expected = clip.text.embed(ids[number])
        if expected.shape != suffix[number].shape or not torch.allclose(expected, suffix[number], rtol=0, atol=1e-3):
            return text
    return ""


def _shape(value: Tensor) -> str:
    return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
