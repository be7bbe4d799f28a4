"""An open_clip model of a configuration, with random weights or those of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from copy import deepcopy
from typing import Any

import open_clip
import torch
from open_clip.convert import convert_state_dict
from open_clip.model import convert_to_custom_text_state_dict
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedvlp.clip.loading.sources import Blueprint
from fedvlp.utils.errors import UserError

_RANDOM_FILLS = frozenset({"kaiming_normal_", "kaiming_uniform_", "normal_", "trunc_normal_", "uniform_"})
_has_values = ContextVar("has_values", default=True)


class _Zeros(TorchFunctionMode):
    """Fills tensors with zeros that would be filled with random numbers."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, arguments: Any = (), options: dict[str, Any] | None = None
    ) -> Any:
        """Calls the function, or returns the tensor that it would fill."""
        options = options or {}
        if function.__name__ not in _RANDOM_FILLS:
            return function(*arguments, **options)
        with torch.no_grad():
            return (arguments[0] if arguments else options["tensor"]).zero_()


@contextmanager
def shapes_alone() -> Iterator[None]:
    """Gives models that are built in the block zeros as weights, for who overwrites or counts them: drawing is slow."""
    token = _has_values.set(False)
    try:
        yield
    finally:
        _has_values.reset(token)


def build_model(config: dict[str, Any], seed: int = 0) -> nn.Module:
    """Returns an open_clip model with random weights, leaving every global generator as it was.

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
        options["vision_cfg"]["timm_model_pretrained"] = False
    weights = nullcontext() if _has_values.get() else _Zeros()
    with torch.random.fork_rng(devices=[]), weights:
        torch.default_generator.manual_seed(seed)
        model: nn.Module = (open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**options)
    return model


def install_weights(model: nn.Module, blueprint: Blueprint, origin: str) -> None:
    """Puts weights into a model, in the model's own types.

    Args:
        model: Gets the weights.
        blueprint: Has the weights, by OpenAI's or open_clip's names.
        origin: Where the weights are from, for the message.

    Raises:
        UserError: If the weights are those of another architecture.
    """
    state: dict[str, Tensor] = convert_state_dict(model, dict(blueprint.weights or {}))
    if "positional_embedding" in state and not hasattr(model, "positional_embedding"):
        state = convert_to_custom_text_state_dict(state)
    own = model.state_dict()
    if "logit_scale" in state:
        state["logit_scale"] = state["logit_scale"].reshape(own["logit_scale"].shape)
    differences = _differences({name: tuple(value.shape) for name, value in own.items()}, state)
    if differences:
        more = f"; and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise UserError(
            f"The weights '{origin}' do not fit {blueprint.name}: {'; '.join(differences[:3])}{more}. "
            "Give --model.clip.name the architecture that they were trained with."
        )
    model.load_state_dict({name: state[name].to(own[name].dtype) for name in own})


def _differences(expected: dict[str, tuple[int, ...]], state: dict[str, Tensor]) -> list[str]:
    """Returns what is missing, unexpected or of another shape, in words."""
    missing = [f"{name} is missing" for name in expected if name not in state]
    shapes = [
        f"{name} has shape {tuple(state[name].shape)} instead of {shape}"
        for name, shape in expected.items()
        if name in state and tuple(state[name].shape) != shape
    ]
    ignored = ("position_ids", "attn_mask", "num_batches_tracked")
    unexpected = [f"{name} is unexpected" for name in state if name not in expected and not name.endswith(ignored)]
    return [*shapes, *missing, *unexpected]
