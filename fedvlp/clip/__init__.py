"""Everything that touches open_clip: loading a frozen CLIP, the prompted encoders of texts and images, zero-shot."""

from fedvlp.clip.backbone import CLIP, load_clip
from fedvlp.clip.image.prompted_image import PromptedImageEncoder, PromptedImages
from fedvlp.clip.loading.models import build_model
from fedvlp.clip.loading.sources import CLIPSpec
from fedvlp.clip.text.domain_text import DomainTextEncoder
from fedvlp.clip.text.prompted_text import PromptedTextEncoder
from fedvlp.clip.text.zero_shot import (
    SINGLE_TEMPLATE,
    TEMPLATES,
    clean_class_name,
    clean_class_names,
    zero_shot_text_features,
)

__all__ = [
    "CLIP",
    "SINGLE_TEMPLATE",
    "TEMPLATES",
    "CLIPSpec",
    "DomainTextEncoder",
    "PromptedImageEncoder",
    "PromptedImages",
    "PromptedTextEncoder",
    "build_model",
    "clean_class_name",
    "clean_class_names",
    "load_clip",
    "zero_shot_text_features",
]
