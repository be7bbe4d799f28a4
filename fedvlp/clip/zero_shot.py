"""Class names as words, templates, and the zero-shot classifier of class names in templates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from open_clip import OPENAI_IMAGENET_TEMPLATES
from torch import Tensor

from fedvlp.clip.backbone import CLIP, cosine_logits
from fedvlp.clip.packing import make_rows
from fedvlp.utils.errors import UserError

SINGLE_TEMPLATE = "a photo of a {}."
TEMPLATES = tuple(dict.fromkeys([SINGLE_TEMPLATE, *(template("{}") for template in OPENAI_IMAGENET_TEMPLATES)]))
"""OpenAI's 80 templates, "a photo of a {}." first; the first 60, up to "itap of the {}.", are TRIP's ensemble."""


def clean_class_name(name: str) -> str:
    """Returns a folder's name as words: `_` becomes a space, white space is squeezed, hyphens and case are kept.

    Example:
        >>> clean_class_name("Alarm_Clock"), clean_class_name("t-shirt")
        ('Alarm Clock', 't-shirt')
    """
    return " ".join(name.replace("_", " ").split())


def clean_class_names(names: Sequence[str]) -> list[str]:
    """Returns every class's name as words, in the order given.

    Example:
        >>> clean_class_names(["Postit_Notes", "TV"])
        ['Postit Notes', 'TV']
    """
    return list(map(clean_class_name, names))


def choose_templates(templates: int | Sequence[str], own: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the first templates of the list, or the templates given, checked.

    Args:
        templates: How many of `TEMPLATES` (1: the single one; 60: TRIP's ensemble), or templates with one `{}` each.
        own: Templates of a CLIP's own, in place of `TEMPLATES`; all of them if fewer than asked for.

    Raises:
        UserError: If the number is not in [1, 80], or a template lacks its `{}`.

    Example:
        >>> choose_templates(1), choose_templates(60)[-1]
        (('a photo of a {}.',), 'itap of the {}.')
    """
    if isinstance(templates, int):
        if not 1 <= templates <= len(TEMPLATES):
            raise UserError(f"There are 1 to {len(TEMPLATES)} templates, but {templates} were asked for.")
        if not own:
            return TEMPLATES[:templates]
        templates = own[:templates]
    chosen = (templates,) if isinstance(templates, str) else tuple(templates)
    wrong = [template for template in chosen if template.count("{}") != 1]
    if wrong or not chosen:
        raise UserError(f"A template has one {{}} for the class's name, but found {wrong or 'no template'}.")
    return chosen


def written_out(clip: CLIP, class_names: Sequence[str]) -> list[str]:
    """Returns each class in the first template, "a photo of a {}." unless the CLIP has templates of its own."""
    (template,) = choose_templates(1, clip.spec.templates)
    return [template.replace("{}", name) for name in clean_class_names(class_names)]


@torch.no_grad()
def zero_shot_text_features(
    clip: CLIP, class_names: Sequence[str], templates: int | Sequence[str] = 1
) -> Float[Tensor, "C d"]:
    """Returns each class's mean over templates of features that are not normalised, in float32, then normalised.

    Args:
        clip: The frozen CLIP.
        class_names: One name for each class; `_` is read as a space.
        templates: How many of `TEMPLATES`, or templates of one's own.
    """
    names = clean_class_names(class_names)
    chosen = choose_templates(templates, clip.spec.templates)
    device = next(clip.parameters()).device
    total = torch.zeros(len(names), clip.embed_dim, device=device)
    # The baseline must not depend on the precision of the run beside which it is reported.
    with torch.autocast(device.type, enabled=False):
        for template in chosen:
            strings = [template.replace("{}", name) for name in names]
            # Strings of one template begin alike, so they are packed behind what they share where that is exact.
            total += make_rows(clip.text, clip.tokenize(strings)).to(device).encode_words(clip.text).float()
    return F.normalize(total / len(chosen), dim=-1)


class ZeroShotClassifier:
    """Zero-shot CLIP's logits, from the mean over templates of the classes' text features.

    The CLIP is shared and not copied; it is no submodule, so that its tensors are listed once.

    Args:
        clip: The frozen CLIP.
        class_names: One name for each class; `_` is read as a space.
        templates: How many of `TEMPLATES`, or of the CLIP's own.
    """

    def __init__(self, clip: CLIP, class_names: Sequence[str], templates: int = 1) -> None:
        self.clip = clip
        self.class_names = class_names
        self.templates = templates
        self._text_features: Tensor | None = None

    @property
    def text_features(self) -> Float[Tensor, "C d"]:
        """w_c, normalised, computed when they are first asked for."""
        if self._text_features is None:
            self._text_features = zero_shot_text_features(self.clip, self.class_names, self.templates)
        # No buffer of a method, so they have to follow where it is moved.
        self._text_features = self._text_features.to(next(self.clip.parameters()).device)
        return self._text_features

    def __call__(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B C"]:
        """Returns the logits of image features."""
        return cosine_logits(features, self.text_features, self.clip.logit_scale)
