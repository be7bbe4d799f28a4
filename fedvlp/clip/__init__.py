"""All code that uses open_clip: loading a frozen CLIP, prompted text and image encoders, zero-shot classification."""

from fedvlp.clip.backbone import CLIP, cosine_logits, load_clip
from fedvlp.clip.loading import CLIPSpec, build_model
from fedvlp.clip.prompted_image import PromptedImageEncoder, PromptedImages
from fedvlp.clip.prompted_text import DomainTextEncoder, PromptedTextEncoder
from fedvlp.clip.zero_shot import (
    SINGLE_TEMPLATE,
    TEMPLATES,
    ZeroShotClassifier,
    clean_class_name,
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
    "ZeroShotClassifier",
    "build_model",
    "clean_class_name",
    "cosine_logits",
    "load_clip",
    "zero_shot_text_features",
]
