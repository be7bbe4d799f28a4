"""What a trained method does, in pictures and words. Its ``methods.py`` alone knows methods."""

from fedvlp.tools.explain.artifacts import Artifact, write_artifacts
from fedvlp.tools.explain.context import ExplainContext
from fedvlp.tools.explain.embeddings import tsne, tsne_picture
from fedvlp.tools.explain.explanations import EXPLANATIONS, Explanation
from fedvlp.tools.explain.methods import image_features, logits_by_prompt, text_prompts, token_experts
from fedvlp.tools.explain.overlays import overlay_picture
from fedvlp.tools.explain.relevance import relevance
from fedvlp.tools.explain.token_maps import token_map_picture
from fedvlp.tools.explain.words import format_words, prompt_words

__all__ = [
    "EXPLANATIONS",
    "Artifact",
    "ExplainContext",
    "Explanation",
    "format_words",
    "image_features",
    "logits_by_prompt",
    "overlay_picture",
    "prompt_words",
    "relevance",
    "text_prompts",
    "token_experts",
    "token_map_picture",
    "tsne",
    "tsne_picture",
    "write_artifacts",
]
