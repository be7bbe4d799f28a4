"""A trainable copy of CLIP's text tower, which makes a classifier of class names."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedvlp.clip import CLIP
from fedvlp.clip.text.packing import pack
from fedvlp.clip.text.zero_shot import SINGLE_TEMPLATE, clean_class_names
from fedvlp.clip.towers.text_tower import TextTower


class TextClassifier(nn.Module):
    """Text features of the classes, under weights that are trained; starts as CLIP's own, in float32.

    Its parameters are named ``language.<open_clip's name>``.

    Args:
        clip: The frozen CLIP, of which nothing is changed.
        class_names: The classes, in the order of the labels, read in "a photo of a {}.".

    Raises:
        UserError: If its text tower is not one that is causal and read at its end-of-text token.
    """

    def __init__(self, clip: CLIP, class_names: list[str]) -> None:
        super().__init__()
        tokens = clip.tokenize([SINGLE_TEMPLATE.replace("{}", name) for name in clean_class_names(class_names)])
        self.rows = pack(tokens, token_budget=96)
        self.language = _text_part(clip.model).float().requires_grad_(True)
        self._tower = TextTower(self.language)
        self._last: tuple[object, Tensor] | None = None

    def forward(self) -> Float[Tensor, "C d"]:
        """Returns w_c, not normalised; those without a gradient are computed when weights have changed."""
        if torch.is_grad_enabled() or torch.compiler.is_exporting():
            return self._encode()
        device = next(self.language.parameters()).device.type
        weights = [(value.data_ptr(), value._version) for value in self.language.parameters()]
        key = (weights, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        if self._last is None or self._last[0] != key:
            self._last = (key, self._encode())
        return self._last[1]

    def _encode(self) -> Float[Tensor, "C d"]:
        no_prompt = self._tower.embed(torch.empty(1, 0, dtype=torch.long, device=self.rows.ids.device))
        return self.rows.encode(self._tower, no_prompt).squeeze(0)


def _text_part(model: Any) -> nn.Module:
    """Returns a copy of an open_clip model's text tower, without its image tower and logit scale."""
    if hasattr(model, "text"):
        text: nn.Module = deepcopy(model.text)
        return text
    text = deepcopy(model, {id(model.visual): nn.Identity()})
    del text.visual, text.logit_scale
    return text
