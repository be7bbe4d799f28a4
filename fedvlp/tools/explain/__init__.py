"""What a trained method does, in pictures and words. Imports clip, core, data, report and results, and no method."""

from fedvlp.tools.explain.artifacts import Artifact, write_artifacts
from fedvlp.tools.explain.context import ExplainContext
from fedvlp.tools.explain.embeddings import tsne
from fedvlp.tools.explain.explanations import EXPLANATIONS, Explanation
from fedvlp.tools.explain.hooks import ChangesImageFeatures, HasSinglePrompts, HasTextPrompts, RoutesTokens
from fedvlp.tools.explain.overlay_picture import overlay_picture
from fedvlp.tools.explain.relevance import relevance
from fedvlp.tools.explain.token_maps import token_map_picture
from fedvlp.tools.explain.tsne_picture import tsne_picture
from fedvlp.tools.explain.word_tables import format_words
from fedvlp.tools.explain.words import prompt_words

__all__ = [
    "EXPLANATIONS",
    "Artifact",
    "ChangesImageFeatures",
    "ExplainContext",
    "Explanation",
    "HasSinglePrompts",
    "HasTextPrompts",
    "RoutesTokens",
    "format_words",
    "overlay_picture",
    "prompt_words",
    "relevance",
    "token_map_picture",
    "tsne",
    "tsne_picture",
    "write_artifacts",
]
