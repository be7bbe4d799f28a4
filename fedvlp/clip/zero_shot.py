"""Class names, templates, and the zero-shot classifier that combines them."""

import logging
from collections import Counter
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from open_clip import OPENAI_IMAGENET_TEMPLATES
from torch import Tensor

from fedvlp.clip.backbone import CLIP, cosine_logits
from fedvlp.clip.packing import make_rows
from fedvlp.utils.errors import UserError

log = logging.getLogger(__name__)

SINGLE_TEMPLATE = "a photo of a {}."
TEMPLATES = tuple(dict.fromkeys([SINGLE_TEMPLATE, *(template("{}") for template in OPENAI_IMAGENET_TEMPLATES)]))
"""OpenAI's 80 templates, "a photo of a {}." first; the first 60, up to "itap of the {}.", are TRIP's ensemble."""


def clean_class_name(name: str) -> str:
    """Turn a folder's name into words: `_` becomes a space and white space is collapsed; hyphens and case stay.

    >>> clean_class_name("Alarm_Clock"), clean_class_name("t-shirt"), clean_class_name("¬image")
    ('Alarm Clock', 't-shirt', 'image')
    """
    return " ".join(name.removeprefix("¬").replace("_", " ").split())  # the mark of the negative class


def choose_templates(templates: int | Sequence[str], own: Sequence[str] = ()) -> tuple[str, ...]:
    """Select the first templates of the list, or check custom templates.

    Raises UserError if the number is not in [1, 80], or a template lacks its `{}`.

    Args:
        templates: Number of `TEMPLATES` (1: the single one; 60: TRIP's ensemble), or templates with one `{}` each.
        own: A CLIP's own templates, which replace `TEMPLATES`; all of them if there are fewer than requested.

    >>> choose_templates(1), choose_templates(60)[-1]
    (('a photo of a {}.',), 'itap of the {}.')
    """
    if isinstance(templates, int):
        if not 1 <= templates <= len(TEMPLATES):
            raise UserError(f"Expected 1 to {len(TEMPLATES)} templates; got {templates}.")
        if not own:
            return TEMPLATES[:templates]
        templates = own[:templates]
    chosen = (templates,) if isinstance(templates, str) else tuple(templates)
    wrong = [template for template in chosen if template.count("{}") != 1]
    if wrong or not chosen:
        raise UserError(f"Expected one {{}} for the class's name in each template; got {wrong or 'no template'}.")
    return chosen


def tokenize_classes(clip: CLIP, class_names: Sequence[str]) -> list[list[int]]:
    """Tokenize each class in the first template, "a photo of a {}." unless the CLIP has its own templates."""
    names = list(map(clean_class_name, class_names))
    (tokens,) = _tokenize_in_templates(clip, names, choose_templates(1, clip.spec.templates))
    return [*tokens.values()]


@torch.no_grad()
def zero_shot_text_features(
    clip: CLIP, class_names: Sequence[str], templates: int | Sequence[str] = 1
) -> Float[Tensor, "C d"]:
    """Average each class's unnormalised features over templates in float32, and normalise the mean.

    A class skips the templates that do not fit into the context with its name. One line in the log reports this. Raises
    UserError if a class does not fit into the context in any template.

    Args:
        clip: The frozen CLIP.
        class_names: One name for each class; `_` is read as a space.
        templates: Number of `TEMPLATES`, or custom templates.
    """
    names = list(map(clean_class_name, class_names))
    chosen = choose_templates(templates, clip.spec.templates)
    device = next(clip.parameters()).device
    total = torch.zeros(len(names), clip.embed_dim, device=device)
    # Results report the baseline next to a run, but it must not depend on the run's precision.
    with torch.autocast(device.type, enabled=False):
        for tokens in _tokenize_in_templates(clip, names, chosen):
            # Texts of one template share their first tokens, which causal towers process only once.
            rows = make_rows(clip.text, [*tokens.values()]).to(device)
            total[[*tokens]] += rows.encode_words(clip.text).float()
    return F.normalize(total / len(chosen), dim=-1)


def _tokenize_in_templates(clip: CLIP, names: Sequence[str], templates: Sequence[str]) -> list[dict[int, list[int]]]:
    """Tokenize classes in templates: for each template, the tokens of the classes that fit, by the class's index."""
    room = clip.token_layout.room
    fitting = []
    skipped: Counter[int] = Counter()
    for template in templates:
        tokens = clip.tokenize([template.replace("{}", name) for name in names])
        fitting.append({index: ids for index, ids in enumerate(tokens) if len(ids) <= room})
        skipped.update(index for index, ids in enumerate(tokens) if len(ids) > room)
    # Truncation could make two classes equal if their names differ only at the end.
    for index, count in skipped.most_common(1):
        if count == len(templates):
            length = len(clip.tokenize([templates[0].replace("{}", names[index])])[0])
            raise UserError(
                f"The class '{names[index]}' makes {length} tokens in '{templates[0]}', but the text tower reads "
                f"{room}. Use a shorter name for this class or a shorter template (--model.clip.templates)."
            )
        line = "%d of %d classes skip templates that make more than %d tokens with their names: '%s' skips %d of %d."
        log.warning(line, len(skipped), len(names), room, names[index], count, len(templates))
    return [tokens for tokens in fitting if tokens]


class ZeroShotClassifier:
    """Zero-shot CLIP classifier that uses the mean of each class's text features over templates.

    The CLIP is shared and not copied. It is not a submodule, so that its tensors are listed only once.

    Args:
        clip: The frozen CLIP.
        class_names: One name for each class; `_` is read as a space.
        templates: Number of `TEMPLATES`, or of the CLIP's own templates.
    """

    def __init__(self, clip: CLIP, class_names: Sequence[str], templates: int = 1) -> None:
        self.clip = clip
        self.class_names = class_names
        self.templates = templates
        self._text_features: Tensor | None = None

    @property
    def text_features(self) -> Float[Tensor, "C d"]:
        """w_c, normalised, computed on first access."""
        if self._text_features is None:
            self._text_features = zero_shot_text_features(self.clip, self.class_names, self.templates)
        # They are not a buffer, so they must be moved explicitly.
        self._text_features = self._text_features.to(next(self.clip.parameters()).device)
        return self._text_features

    def __call__(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B C"]:
        """Compute the logits of image features."""
        return cosine_logits(features, self.text_features, self.clip.logit_scale)
