"""The words nearest to prompts, of those alone that a server has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fedvlp.core.module import FederatedModule
from fedvlp.core.state import State, detached, select
from fedvlp.tools.explain.methods import text_prompts
from fedvlp.tools.explain.words import Words, prompt_words, token_embeddings, typical_distance


@dataclass(frozen=True)
class ServerWords:
    """What the prompts that a server has say.

    Attributes:
        words: for each of these prompts and each of its vectors, the nearest words.
        typical_distance: within which half of all words have another word.
        hidden: titles of prompts that stay on the clients.
    """

    words: Words
    typical_distance: float
    hidden: list[str]


@torch.no_grad()
def server_words(module: FederatedModule, deployed: State, count: int = 3) -> ServerWords | None:
    """Returns the words nearest to the prompts of the server; None of a method that learns nothing among words.

    Args:
        module: the method.
        deployed: the server's tensors.
        count: how many words of each vector.
    """
    clip: Any = module.clip
    kept = detached(select(module.communicable_state(), (*module.personal, *module.train_only_personal)))
    # What stays on the clients is marked, and a prompt that bears the mark is none of the server's.
    mark = {name: torch.full_like(value, float("nan")) for name, value in kept.items() if value.is_floating_point()}
    module.load_state({**deployed, **mark})
    prompts = text_prompts(module)
    seen = {title: prompt.detach().cpu().clone() for title, prompt in prompts.items() if bool(prompt.isfinite().all())}
    module.load_state(kept)
    if not prompts:
        return None
    words = prompt_words(clip, seen, count)
    return ServerWords(words, typical_distance(token_embeddings(clip)), [name for name in prompts if name not in seen])
