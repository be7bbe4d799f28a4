from __future__ import annotations

import csv
import io

import numpy as np
import pytest
import torch

from fedvlp.tools.explain.words import (
    Word,
    format_words,
    nearest,
    prompt_words,
    token_embeddings,
    token_text,
    typical_distance,
    words_picture,
)


def test_nearest_rows_one_by_one():
    generator = torch.Generator().manual_seed(0)
    vocabulary = torch.randn(40, 6, generator=generator)
    vectors = torch.cat([torch.randn(3, 6, generator=generator), vocabulary[7:8]])
    distances, tokens = nearest(vectors, vocabulary, 4)
    for vector, found, places in zip(vectors.numpy(), distances.numpy(), tokens.tolist(), strict=True):
        every = [float(np.sqrt(((vector - row) ** 2).sum())) for row in vocabulary.numpy()]
        order = sorted(range(40), key=every.__getitem__)
        assert places == order[:4]
        np.testing.assert_allclose(found, [every[place] for place in places], atol=1e-5)
    assert tokens[3, 0] == 7
    assert distances[3, 0] == 0


def test_typical_distance_is_the_median_of_nearest_others():
    generator = torch.Generator().manual_seed(1)
    vocabulary = torch.randn(21, 4, generator=generator)
    distances = torch.cdist(vocabulary, vocabulary).fill_diagonal_(torch.inf)
    assert typical_distance(vocabulary) == pytest.approx(float(distances.amin(dim=1).median()), abs=1e-5)


def test_a_prompt_made_of_words_is_read_back(clip):
    ids = clip.tokenize(["a photo of a zebra"])[0][1:-1]
    prompt = token_embeddings(clip)[ids]
    words = prompt_words(clip, {"prompt": prompt + 1e-5}, count=2)
    assert [near[0].text for near in words["prompt"]] == ["a", "photo", "of", "a", "zebra"]
    assert [near[0].token for near in words["prompt"]] == ids
    assert all(near[0].distance < 1e-3 < near[1].distance for near in words["prompt"])


def test_text_of_tokens(clip):
    tokenizer = clip.tokenizer
    text = {name: token_text(tokenizer, tokenizer.encoder[name]) for name in ("cat</w>", "cat", "<end_of_text>")}
    assert text == {"cat</w>": "cat", "cat": "cat…", "<end_of_text>": "<end_of_text>"}
    bytes_alone = {token_text(tokenizer, token) for token in range(180, 188)}
    assert bytes_alone == {"N/A"}


WORDS = {
    "ink": [[Word("a|b", 1, 0.25), Word("c", 2, 1.0)], [Word("`", 3, 0.5), Word("d", 4, 2.0)]],
    "oil": [[Word("猫", 5, 0.125), Word("e", 6, 3.0)]],
}


def test_tables():
    assert format_words(WORDS, "table").splitlines()[2:] == [
        "1       a|b 0.250  猫 0.125",
        "2         ` 0.500",
    ]
    assert format_words(WORDS, "markdown").splitlines() == [
        "| vector | ink | oil |",
        "| ---: | :--- | :--- |",
        r"| 1 | `a\|b` 0.250 | `猫` 0.125 |",
        "| 2 | `` ` `` 0.500 |  |",
    ]
    rows = list(csv.DictReader(io.StringIO(format_words(WORDS, "csv"))))
    assert len(rows) == 6
    assert rows[1] == {"prompt": "ink", "vector": "1", "rank": "2", "word": "c", "token": "2", "distance": "1.000000"}


def test_many_prompts_make_several_tables():
    words = {f"client {index}": [[Word("x", 1, 0.5)]] for index in range(8)}
    tables = format_words(words, "markdown").split("\n\n")
    assert [table.splitlines()[0].count("client") for table in tables] == [6, 2]


def test_picture_has_what_the_font_can_draw():
    picture = words_picture(WORDS, "FedDPT", 0.75)
    (text,) = [text.get_text() for text in picture.figure.texts]
    assert "N/A 0.125" in text
    assert "猫" in picture.alt
    assert "0.750" in picture.caption
    assert picture.image("png").startswith(b"\x89PNG")
