"""Words of CLIP's vocabulary nearest to learned prompts (CoOp, Table 4; ADAPT, Table 1)."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from pandas import DataFrame
from torch import Tensor

from fedvlp.clip import CLIP
from fedvlp.core.module import FederatedModule
from fedvlp.core.state import State
from fedvlp.tools.explain.methods import text_prompts

COLUMNS = ["prompt", "vector", "rank", "word", "token", "distance"]


@torch.no_grad()
def prompt_words(clip: CLIP, prompts: Mapping[str, Float[Tensor, "L D"]], count: int = 5) -> DataFrame:
    """Find the words nearest to each vector of each prompt.

    The table has one row per prompt, vector (from 1) and rank (from 1), with the token's text, index and Euclidean
    distance.
    """
    vocabulary = token_embeddings(clip)
    rows = []
    for name, prompt in prompts.items():
        distances, tokens = nearest(prompt.to(vocabulary), vocabulary, count)
        for vector in range(len(prompt)):
            near = zip(tokens[vector].tolist(), distances[vector].tolist(), strict=True)
            for rank, (token, distance) in enumerate(near, start=1):
                rows.append([name, vector + 1, rank, token_text(clip.tokenizer, token), token, distance])
    return DataFrame(rows, columns=COLUMNS)


@torch.no_grad()
def token_embeddings(clip: CLIP) -> Float[Tensor, "vocabulary D"]:
    """Embed all tokens of CLIP, in float32."""
    # Some encoders multiply the weights by a factor.
    tokens = torch.arange(clip.text.embedding.num_embeddings, device=clip.text.embedding.weight.device)
    return clip.text.embed(tokens).float()


def nearest(
    vectors: Float[Tensor, "L D"], vocabulary: Float[Tensor, "vocabulary D"], count: int
) -> tuple[Float[Tensor, "L count"], Int[Tensor, "L count"]]:
    """Find the Euclidean distances and the indices of the nearest rows, nearest first."""
    # In double precision, because matrix products cancel digits, and in parts, to support a million words.
    parts = [torch.cdist(vectors.double(), part.double()) for part in torch.split(vocabulary, 65536)]
    distances = torch.cat(parts, dim=1)
    values, indices = distances.topk(count, dim=1, largest=False)
    return values.float(), indices


def token_text(tokenizer: Any, token: int) -> str:
    """Format a token for readers: with an ellipsis for a part of a word, N/A if it is no text."""
    hugging_face = getattr(tokenizer, "tokenizer", None)
    decode = (hugging_face or tokenizer).decode
    # BERT's tokenizers mark the continuation of a word with two signs.
    word: str = decode([token]).strip().removeprefix("##")
    # A token can be a part of a character's bytes, which decodes to the replacement character.
    if not word or "\ufffd" in word:
        return "N/A"
    is_special = word.startswith("<") or token in getattr(hugging_face, "all_special_ids", ())
    # A token next to a space is a whole word, or the end of a word in CLIP's tokenizer and the start in others.
    if is_special or " " in decode([token, token]).strip():
        return word
    return f"{word}…" if hugging_face is None else f"…{word}"


def named_prompts(
    module: FederatedModule, deployed: State, personal: Mapping[str, State]
) -> dict[str, Float[Tensor, "L D"]]:
    """Copy all text prompts by name; prompts that differ between clients are copied for each client.

    ``personal`` contains tensors by the client's name; it is empty if all clients share one model.
    """
    by_client: dict[str, dict[str, Tensor]] = {}
    for client, state in (personal or {"": {}}).items():
        module.load_state({**deployed, **state})
        for name, prompt in text_prompts(module).items():
            by_client.setdefault(name, {})[client] = prompt.detach().cpu().clone()
    module.load_state(deployed)
    prompts: dict[str, Tensor] = {}
    for name, variants in by_client.items():
        first = next(iter(variants.values()))
        if all(torch.equal(prompt, first) for prompt in variants.values()):
            prompts[name] = first
        else:
            prompts |= {f"{name} of {client}": prompt for client, prompt in variants.items()}
    return prompts
