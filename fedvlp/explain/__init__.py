"""What a trained method does, in pictures and words."""

from fedvlp.explain.artifacts import Exhibit, write_exhibits
from fedvlp.explain.embeddings import tsne, tsne_picture
from fedvlp.explain.explanations import KINDS, Subject
from fedvlp.explain.hooks import ChangesImageFeatures, HasSinglePrompts, HasTextPrompts, RoutesTokens
from fedvlp.explain.overlays import overlay_picture
from fedvlp.explain.relevance import relevance
from fedvlp.explain.token_maps import token_map_picture
from fedvlp.explain.words import format_words, prompt_words

__all__ = [
    "KINDS",
    "ChangesImageFeatures",
    "Exhibit",
    "HasSinglePrompts",
    "HasTextPrompts",
    "RoutesTokens",
    "Subject",
    "format_words",
    "overlay_picture",
    "prompt_words",
    "relevance",
    "token_map_picture",
    "tsne",
    "tsne_picture",
    "write_exhibits",
]
