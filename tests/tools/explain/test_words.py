import numpy as np
import pytest
import torch

from fedvlp import SingleDomain
from fedvlp.tools.explain.words import (
    named_prompts,
    nearest,
    prompt_words,
    token_embeddings,
    token_text,
)
from tests.helpers.made_up_clips import made_up_clip


def test_nearest_rows_match_a_sorted_list():
    generator = torch.Generator().manual_seed(0)
    vocabulary = torch.randn(40, 6, generator=generator)
    vectors = torch.cat([torch.randn(3, 6, generator=generator), vocabulary[7:8]])
    distances, tokens = nearest(vectors, vocabulary, 4)
    for vector, found, indices in zip(vectors.numpy(), distances.numpy(), tokens.tolist(), strict=True):
        all_distances = [float(np.sqrt(((vector - row) ** 2).sum())) for row in vocabulary.numpy()]
        order = sorted(range(40), key=all_distances.__getitem__)
        assert indices == order[:4]
        np.testing.assert_allclose(found, [all_distances[index] for index in indices], atol=1e-5)
    assert tokens[3, 0] == 7
    assert distances[3, 0] == 0


def test_words_of_a_prompt_are_recovered(clip):
    ids = clip.tokenize(["a photo of a zebra"])[0][1:-1]
    prompt = token_embeddings(clip)[ids]
    words = prompt_words(clip, {"prompt": prompt + 1e-5}, count=2)
    first = words[words["rank"] == 1]
    assert first["word"].tolist() == ["a", "photo", "of", "a", "zebra"]
    assert first["token"].tolist() == ids
    assert first["vector"].tolist() == [1, 2, 3, 4, 5]
    assert first["distance"].max() < 1e-3 < words[words["rank"] == 2]["distance"].min()


def test_tokens_are_shown_as_text(clip):
    tokenizer = clip.tokenizer
    text = {name: token_text(tokenizer, tokenizer.encoder[name]) for name in ("cat</w>", "cat", "<end_of_text>")}
    assert text == {"cat</w>": "cat", "cat": "cat…", "<end_of_text>": "<end_of_text>"}
    partial_characters = {token_text(tokenizer, token) for token in range(180, 188)}
    assert partial_characters == {"N/A"}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("biomedclip", ["a", "cat", "…s", "з", "…у", "…б", "[SEP]"]),
        ("siglip2", ["…a", "cat", "…s", "N/A", "…з", "…у", "…б", "<eos>"]),
    ],
)
def test_tokens_of_other_tokenizers_start_or_continue_words(tmp_path, kind, expected):
    clip = made_up_clip(kind, tmp_path)
    ids = clip.tokenize(["a cats зуб"])[0][len(clip.token_layout.start) :]
    vocabulary = token_embeddings(clip)
    assert len(vocabulary) == len(clip.tokenizer.tokenizer)
    words = prompt_words(clip, {"prompt": clip.text.embed(torch.tensor(ids))}, count=1)
    assert words["token"].tolist() == ids
    assert words["word"].tolist() == expected
    assert token_text(clip.tokenizer, 10**6) == "N/A"  # some models have more vectors than tokens


def test_prompts_shared_by_all_clients_are_named_once(clip):
    module = SingleDomain(["cat", "dog"], clip=clip, prompt_length=2)
    first = torch.zeros(2, clip.text_width)
    second = torch.ones(2, clip.text_width)
    own = named_prompts(module, {}, {"ink": {"prompt": first}, "oil": {"prompt": second}})
    assert {name: float(prompt.mean()) for name, prompt in own.items()} == {"prompt of ink": 0, "prompt of oil": 1}
    shared = named_prompts(module, {}, {"ink": {"prompt": second}, "oil": {"prompt": second}})
    assert {name: float(prompt.mean()) for name, prompt in shared.items()} == {"prompt": 1}
