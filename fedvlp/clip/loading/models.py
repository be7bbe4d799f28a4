"""An open_clip model of a configuration, with random weights or those of a file, and CLIP's two image transforms."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import open_clip
import torch
from open_clip.convert import convert_state_dict
from open_clip.model import convert_to_custom_text_state_dict
from open_clip.transform import AugmentationCfg, PreprocessCfg, image_transform_v2
from PIL import Image
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torchvision.transforms import Compose, RandomHorizontalFlip

from fedvlp.clip.loading.sources import Blueprint
from fedvlp.utils.errors import UserError

_RANDOM_FILLS = frozenset({"kaiming_normal_", "kaiming_uniform_", "normal_", "trunc_normal_", "uniform_"})


class shapes_only(TorchFunctionMode):  # noqa: N801, a context manager
    """Fills new weights with zeros, where they are overwritten or only counted: random numbers take seconds."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, arguments: Any = (), options: dict[str, Any] | None = None
    ) -> Any:
        """Calls the function, or fills with zeros the tensor that it would fill with random numbers."""
        options = options or {}
        if function.__name__ not in _RANDOM_FILLS:
            return function(*arguments, **options)
        with torch.no_grad():
            return (arguments[0] if arguments else options["tensor"]).zero_()


def build_model(config: dict[str, Any], seed: int = 0) -> nn.Module:
    """Builds an open_clip model with random weights; global random generators keep their states.

    Args:
        config: open_clip's model config: `embed_dim`, `vision_cfg`, `text_cfg` and perhaps `quick_gelu`, `custom_text`.
        seed: Seed of the weights.

    Raises:
        UserError: If the architecture is one in which prompts cannot be learned.
    """
    options = deepcopy(config)
    custom = options.pop("custom_text", False)
    if "multimodal_cfg" in options or options["text_cfg"].get("hf_model_name"):
        raise UserError(
            "Prompts are learned in CLIP's own text transformer, but this model has a text tower of another library or "
            "a caption decoder. Choose another --model.clip.name, for example ViT-B-16."
        )
    if "timm_model_name" in options["vision_cfg"]:
        # Else timm would download the image tower's weights, which are overwritten.
        options["vision_cfg"]["timm_model_pretrained"] = False
    # open_clip draws from the global generator; a run's own draws must not depend on how its CLIP was loaded.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model: nn.Module = (open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**options)
    return model


def install_weights(model: nn.Module, blueprint: Blueprint, origin: str) -> None:
    """Loads weights into a model, cast to the model's types.

    Args:
        model: Gets the weights.
        blueprint: Has the weights, by OpenAI's or open_clip's names.
        origin: Where the weights are from, for the message.

    Raises:
        UserError: If the weights are those of another architecture.
    """
    state: dict[str, Tensor] = convert_state_dict(model, dict(blueprint.weights or {}))
    # The file is of a `CLIP`, and the model a `CustomTextCLIP`, whose text tower is a module of its own.
    if "positional_embedding" in state and not hasattr(model, "positional_embedding"):
        state = convert_to_custom_text_state_dict(state)
    expected = model.state_dict()
    if "logit_scale" in state:  # a number in some files, a list of one in others
        state["logit_scale"] = state["logit_scale"].reshape(expected["logit_scale"].shape)
    differences = _differences(expected, state)
    if differences:
        more = f"; and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise UserError(
            f"The weights '{origin}' do not fit {blueprint.name}: {'; '.join(differences[:3])}{more}. "
            "Give --model.clip.name the architecture that they were trained with."
        )
    model.load_state_dict({name: state[name].to(expected[name].dtype) for name in expected})


def _differences(expected: dict[str, Tensor], state: dict[str, Tensor]) -> list[str]:
    """Describes tensors that are missing, unexpected or of another shape."""
    differences = []
    for name, value in expected.items():
        if name not in state:
            differences.append(f"{name} is missing")
        elif state[name].shape != value.shape:
            shape = tuple(state[name].shape)
            # A wrong shape says more than a missing name, and only three differences are shown.
            differences.insert(0, f"{name} has shape {shape} instead of {tuple(value.shape)}")
    # Buffers that some versions of open_clip save and others compute.
    ignored = ("position_ids", "attn_mask", "num_batches_tracked")
    unexpected = [name for name in state if name not in expected and not name.endswith(ignored)]
    return [*differences, *(f"{name} is unexpected" for name in unexpected)]


def evaluation_transform(options: PreprocessCfg) -> Callable[[Image.Image], Tensor]:
    """Returns CLIP's own transform: bicubic resize of the shorter side, centre crop, RGB, CLIP's mean and deviation."""
    transform: Callable[[Image.Image], Tensor] = image_transform_v2(options, is_train=False)
    return transform


def training_transform(options: PreprocessCfg) -> Callable[[Image.Image], Tensor]:
    """Returns CoOp's augmentation: a bicubic crop of 8 to 100 % of the area, half of the pictures mirrored."""
    crop = image_transform_v2(options, is_train=True, aug_cfg=AugmentationCfg(scale=(0.08, 1.0)))
    transform: Callable[[Image.Image], Tensor] = Compose([RandomHorizontalFlip(), crop])
    return transform
