from dataclasses import replace

import numpy as np
import open_clip
import pytest
import torch
from lightning.fabric import Fabric
from open_clip import CLIP
from safetensors.torch import load_file

from experiments.icon_domains.icons import Icon, IconSet, things
from experiments.small_clip import corpus, prompts
from experiments.small_clip.augmentation import LOOKS, Augmentation, named
from experiments.small_clip.corpus import banned_names, corpus_of, icons_of, token_vectors
from experiments.small_clip.probe import few_shot, retrieval, row
from experiments.small_clip.train import Batches, Pretraining, Recipe, save, train
from experiments.small_clip.validation import Validation
from experiments.tiny_clip.train import encode_text
from fedvlp.clip.loading import BUNDLED, bundled_config, expand, shapes_only

SET = IconSet("mine", "1.0.0", "pretraining", "", "MIT", "Ada", "0" * 64)
NAMES = ("bell", "red bell", "fish", "fish", "fish")


@pytest.fixture(scope="module")
def small():
    """Make a corpus of five icons: bars at different positions, one of them coloured."""
    pictures = np.zeros((6, 64, 64, 5), np.uint8)  # the last picture is empty
    for index in range(5):
        pictures[index, 4 + 12 * index : 10 + 12 * index, 4:60, 3:] = 255
    pictures[1, ..., 0] = 200
    icons = [Icon(replace(SET, author=f"author {index}"), name, "") for index, name in enumerate((*NAMES, "anchor"))]
    vectors = {word: np.full(100, value, np.float32) for word, value in (("the", 3), ("bell", 1), ("fishing", 2))}
    return corpus_of(icons, pictures, vectors, size=0)


@pytest.fixture(scope="module")
def recipe():
    return Recipe(steps=3, batch_size=6, more_names=2, pairs=0.34, plain=1.0)


def test_banned_names_and_duplicate_sizes_of_icons_are_dropped(monkeypatch):
    names = ("cats", "cat-house", "category", "bell-12", "bell-16", "bell-20", "bell-24", "bell-28", "flag-france")
    monkeypatch.setattr(corpus, "read_icons", lambda icons, _: [Icon(icons, name, "") for name in names])
    remaining = [icon.name for icon in icons_of([SET], None, ["cat"])]
    assert remaining == ["category", "bell-16", "bell-20", "bell-24", "bell-28"]
    banned = set(banned_names())
    class_words = {name for thing in things() if thing.part in ("seen", "") for name in thing.synonyms}
    assert "padlock" in banned
    assert not banned & class_words


def test_captions_are_renumbered_by_the_learned_tokens(small):
    tokens = small.tokens(["red bell", "fish"])
    assert small.words[tokens[0]].tolist() == [49406, 736, 3718, 49407]
    assert tokens[1, -1] == 0  # padding after the end
    assert tokens.argmax(dim=1).tolist() == [3, 2]
    assert small.names == ["bell", "red bell", "fish"]
    assert small.name.tolist() == [0, 1, 2, 2, 2]
    assert small.is_black.tolist() == [True, False, True, True, True]


def test_a_token_without_a_vector_gets_the_mean_of_words_that_contain_it():
    vectors = {word: np.full(100, value, np.float32) for word, value in (("clip", 1), ("paperclip", 3))}
    paper, clip, bell = token_vectors([8680, 9289, 3718], ["a paperclip"], vectors)[:, 0].tolist()
    assert (paper, clip, bell) == (3, 1, 0)


def test_plain_pictures_are_black_on_white_and_pairs_are_side_by_side():
    pictures = np.zeros((2, 64, 64, 5), np.uint8)
    pictures[0, :32, :, 3] = 255
    pictures[1, 32:, :, 3] = 255
    layers = torch.from_numpy(pictures)
    black = torch.tensor([True, True])
    plain, looks = Augmentation(torch.Generator().manual_seed(3), 0.0)(layers, black, 0)
    assert looks.tolist() == [-1, -1]
    assert torch.equal(plain[:, :, ::63, 5], torch.tensor([[0.0, 1.0], [1.0, 0.0]])[:, None].expand(2, 3, 2))
    changed = Augmentation(torch.Generator().manual_seed(3), 1.0)
    side_by_side = changed.move(layers.permute(0, 3, 1, 2).float(), 1)[0, 3]
    left, right = side_by_side[:, 4:28].mean(dim=1), side_by_side[:, 36:60].mean(dim=1)
    rows = torch.arange(64.0)
    assert (left * rows).sum() / left.sum() + 5 < (right * rows).sum() / right.sum()


def test_changed_pictures_are_labelled_with_colour_or_pixel_art():
    colours = torch.tensor([[0.9, 0.1, 0.1], [0.1, 0.2, 0.9], [0.0, 0.0, 0.0]])
    assert [LOOKS[index] for index in named(colours[:2])] == ["red", "blue"]
    assert named(colours[2:]).tolist() == [-1]
    pictures = torch.zeros(200, 64, 64, 5, dtype=torch.uint8)
    pictures[:, 8:56, 8:56, 3:] = 255
    images, looks = Augmentation(torch.Generator().manual_seed(0), 1.0)(pictures, torch.ones(200, dtype=torch.bool), 0)
    middle = images[looks == LOOKS.index("red"), :, 32, 32].mean(dim=0)
    assert middle[0] > middle[1:].max() + 0.4
    assert (looks == LOOKS.index("pixel art")).sum() == 40


def test_looks_follow_the_icons_names():
    names = ("bell-outline", "bell-fill", "filled-bell", "bell-bold-duotone", "bell", "line-chart")
    icons = [Icon(SET, name, "") for name in names]
    found = [corpus.look(icon, is_black=True) for icon in icons]
    assert found == ["outlined", "filled", "filled", "two-tone", "", ""]
    assert corpus.look(icons[0], is_black=False) == "colourful"


def test_positive_pairs_are_captions_that_fit_their_image(small, recipe):
    batches = Batches(small, recipe, seed=1)
    names = torch.tensor([2, 0, 2, 1, 0])
    tokens, positive = batches.captions(names, ["red"] * 4, pairs=1)
    tokens, positive, positive_looks = tokens[:4], positive[:, :4], positive[:, 4:]
    assert positive.tolist() == [
        [False, True, True, True],
        [True, False, False, False],
        [False, False, True, False],
        [False, True, False, False],
    ]
    assert positive_looks.tolist() == [
        [False] * 4,
        [True, False, False, False],
        [False, False, True, False],
        [False] * 4,
    ]
    ink = torch.ones(1, 3, 64, 64)
    ink[:, :, 20:24, 42:44] = 0
    assert batches.inked(ink, places=1).tolist() == [[2 * 8 + 5]]


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="PyTorch 2.9 brings Muon")
def test_training_changes_both_towers_and_saved_weights_are_the_trained_ones(small, recipe, tmp_path):
    torch.manual_seed(0)
    model = Pretraining(small.vectors, frequent=1)
    before = {name: value.clone() for name, value in model.clip.named_parameters()}
    # Muon takes seconds per step of the image tower.
    list(train(Fabric(accelerator="cpu", devices=1), model, Batches(small, replace(recipe, steps=1), seed=0)))
    moved = {name for name, value in model.clip.named_parameters() if not torch.equal(value, before[name])}
    assert {"visual.trunk.pos_embed", "text_projection", "positional_embedding", "token_embedding.matrix"} <= moved
    save(model.clip, small.words, tmp_path / "weights.safetensors")
    config = bundled_config("fedvlp-small")
    with shapes_only():
        loaded = CLIP(**config)
    loaded.load_state_dict(expand(load_file(tmp_path / "weights.safetensors"), config["text_cfg"]["vocab_size"]))
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(loaded.encode_image(images), model.encode_image(images, None), atol=0.02, rtol=0.02)


def test_a_shifted_caption_ignores_the_free_positions_before_it(small):
    clip = Pretraining(small.vectors, frequent=1).clip
    tokens = small.tokens(["red bell"])
    free = torch.cat([tokens[:, :1], torch.zeros(1, 3, dtype=torch.long), tokens[:, 1:]], dim=1)
    is_there = torch.tensor([True, False, False, False, True, True, True])
    causal = torch.full((7, 7), -torch.inf).triu(1)
    hidden = clip.token_embedding(free) + clip.positional_embedding[:7]
    hidden = clip.ln_final(clip.transformer(hidden, attn_mask=causal.masked_fill(~is_there, -torch.inf)))
    expected = torch.nn.functional.normalize(hidden[:, -1] @ clip.text_projection, dim=1)
    torch.testing.assert_close(encode_text(clip, tokens, offset=3), expected)


def test_only_the_text_tower_is_trained_if_the_image_tower_is_frozen(small, recipe, tmp_path):
    torch.manual_seed(0)
    first = Pretraining(small.vectors, frequent=1)
    save(first.clip, small.words, tmp_path / "weights.safetensors")
    model = Pretraining(small.vectors, frequent=1)
    model.keep_image_tower(tmp_path / "weights.safetensors")
    before = {name: value.clone() for name, value in model.clip.state_dict().items()}
    losses = list(train(Fabric(accelerator="cpu", devices=1), model, Batches(small, recipe, seed=0)))
    assert len(losses) == recipe.steps
    assert np.isfinite(losses).all()
    changed = {name for name, value in model.clip.state_dict().items() if not torch.equal(value, before[name])}
    assert not any(name.startswith("visual.") for name in changed)
    assert {"positional_embedding", "text_projection"} <= changed
    torch.testing.assert_close(
        before["visual.trunk.pos_embed"], first.clip.visual.trunk.pos_embed, atol=1e-3, rtol=1e-3
    )


def test_validation_accuracies_by_hand(monkeypatch):
    validation = Validation(
        images=np.zeros((4, 64, 64, 3), np.uint8),
        labels=torch.tensor([0, 0, 1, 2]),
        makers=np.array(["x", "y", "y", "y"]),
        tokens=torch.zeros(3, 1),
        is_seen=torch.tensor([True, True, False]),
    )
    scores = torch.tensor([[0.9, 0.1, 0.2], [0.5, 0.1, 0.7], [0.8, 0.3, 0.1], [0.9, 0.0, 0.5]])
    monkeypatch.setattr("experiments.small_clip.validation.encode_images", lambda *_: scores)
    monkeypatch.setattr("experiments.small_clip.validation.encode_text", lambda *_: torch.eye(3))
    measured = validation.measure(torch.nn.Identity())
    assert measured == "seen 66.7, new 100.0, all 25.0, x 100.0, y 50.0"


def test_probe_accuracies_by_hand():
    scores = torch.tensor([[0.9, 0.1, 0.2], [0.5, 0.1, 0.7], [0.9, 0.0, 0.5]])
    labels = torch.tensor([0, 0, 2])
    cells = row(scores, labels, torch.tensor([True, True, False]))
    assert [cell.split()[0] for cell in cells] == ["100.0", "100.0", "33.3", "50.0", "0.0"]
    labels = torch.arange(2).repeat_interleave(10)
    found = labels[:, None] + torch.tensor([0.0, 1.0])
    assert retrieval(found, labels, [1]) == 100
    assert retrieval(found, labels, [0]) == 0
    features = torch.nn.functional.one_hot(labels).float()
    assert few_shot(features, labels, torch.arange(20) % 2 == 0, seed=0) == 100


def test_a_prompt_of_word_vectors_equals_its_words():
    model = prompts.load(BUNDLED["fedvlp-small"] / "weights.safetensors")
    tokens = open_clip.get_tokenizer("ViT-B-32")(["a photo of a fish.", "a photo of a bell."])
    words = model.token_embedding(tokens)[0, 1:5]
    others = open_clip.get_tokenizer("ViT-B-32")(["x x x x fish.", "x x x x bell."])
    with torch.no_grad():
        expected = model.encode_text(tokens, normalize=True)
        torch.testing.assert_close(prompts.text_features(model, words, others[:, :8]), expected)
