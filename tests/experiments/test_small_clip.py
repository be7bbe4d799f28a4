from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric
from open_clip import CLIP
from safetensors.torch import load_file

from experiments.icon_domains.icons import Icon, IconSet, things
from experiments.small_clip import corpus
from experiments.small_clip.augmentation import Augmentation
from experiments.small_clip.corpus import banned_names, corpus_of, icons_of, token_vectors
from experiments.small_clip.probe import few_shot, retrieval, row
from experiments.small_clip.train import Batches, Pretraining, parse_options, save, schedule, train
from experiments.small_clip.validation import Validation
from fedvlp.clip.loading import bundled_config, expand

SET = IconSet("mine", "1.0.0", "pretraining", "", "MIT", "Ada", "0" * 64)
NAMES = ("bell", "red bell", "fish", "fish", "fish")


@pytest.fixture(scope="module")
def small():
    """A corpus of five icons: bars of other places, one of them in colour."""
    pictures = np.zeros((6, 64, 64, 5), np.uint8)  # the last has no picture
    for index in range(5):
        pictures[index, 4 + 12 * index : 10 + 12 * index, 4:60, 3:] = 255
    pictures[1, ..., 0] = 200
    icons = [Icon(replace(SET, author=f"author {index}"), name, "") for index, name in enumerate((*NAMES, "anchor"))]
    vectors = {word: np.full(100, value, np.float32) for word, value in (("the", 3), ("bell", 1), ("fishing", 2))}
    return corpus_of(icons, pictures, vectors, size=0)


@pytest.fixture(scope="module")
def options():
    return parse_options(["--batch_size", "6", "--more_names", "2", "--pairs", "0.34", "--steps", "30", "--plain", "1"])


def test_icons_of_banned_names_and_of_many_sizes_are_left_out(monkeypatch):
    names = ("cats", "cat-house", "category", "bell-12", "bell-16", "bell-20", "bell-24", "bell-28", "flag-france")
    monkeypatch.setattr(corpus, "read_icons", lambda icons, _: [Icon(icons, name, "") for name in names])
    left = [icon.name for icon in icons_of([SET], None, ["cat"])]
    assert left == ["category", "bell-16", "bell-20", "bell-24", "bell-28"]
    banned = set(banned_names())
    kept = {name for thing in things() if thing.part in ("seen", "") for name in thing.synonyms}
    assert "padlock" in banned
    assert not banned & kept


def test_captions_are_renumbered_by_the_words_that_are_learned(small):
    tokens = small.tokens(["red bell", "fish"])
    assert small.words[tokens[0]].tolist() == [49406, 736, 3718, 49407]
    assert tokens[1, -1] == 0  # padding behind the end
    assert tokens.argmax(dim=1).tolist() == [3, 2]
    assert small.names == ["bell", "red bell", "fish"]
    assert small.name.tolist() == [0, 1, 2, 2, 2]
    assert small.is_black.tolist() == [True, False, True, True, True]


def test_names_are_drawn_by_their_authors_and_colours():
    two = replace(_few(), authors=torch.tensor([1, 3]), is_black=np.array([True, True, False]))
    assert two.weights(power=2, colour=5).tolist() == [1, 4.5, 22.5]
    assert two.frequent().tolist() == [-1, 0]


def _few():
    return corpus.Corpus(
        np.zeros((0, 64, 64, 5), np.uint8),
        torch.arange(3),
        np.ones(3, bool),
        ["a", "b"],
        torch.tensor([0, 1, 1]),
        torch.tensor([1, 1]),
        torch.arange(2),
        torch.zeros(2, 100),
    )


def test_a_word_has_its_own_vector_and_a_part_that_of_the_words_that_hold_it():
    vectors = {word: np.full(100, value, np.float32) for word, value in (("clip", 1), ("paperclip", 3))}
    paper, clip, bell = token_vectors([8680, 9289, 3718], ["a paperclip"], vectors)[:, 0].tolist()
    assert (paper, clip, bell) == (3, 1, 0)


def test_a_plain_picture_is_black_on_white_and_pairs_stand_side_by_side():
    pictures = np.zeros((2, 64, 64, 5), np.uint8)
    pictures[0, :32, :, 3] = 255
    pictures[1, 32:, :, 3] = 255
    layers = torch.from_numpy(pictures)
    black = torch.tensor([True, True])
    plain = Augmentation(torch.Generator().manual_seed(3), 0.0)(layers, black, 0)
    assert torch.equal(plain[:, :, ::63, 5], torch.tensor([[0.0, 1.0], [1.0, 0.0]])[:, None].expand(2, 3, 2))
    changed = Augmentation(torch.Generator().manual_seed(3), 1.0)
    side_by_side = changed.move(layers.permute(0, 3, 1, 2).float(), 1)[0, 3]
    left, right = side_by_side[:, 4:28].mean(dim=1), side_by_side[:, 36:60].mean(dim=1)
    rows = torch.arange(64.0)
    assert (left * rows).sum() / left.sum() + 5 < (right * rows).sum() / right.sum()


def test_captions_of_a_batch_are_true_of_their_images(small, options):
    batches = Batches(small, options, seed=1)
    names = torch.tensor([2, 0, 2, 1, 0])
    tokens, positive = batches.captions(names, images=4, pairs=1)
    assert positive.tolist() == [
        [False, True, True, True],
        [True, False, False, False],
        [False, False, True, False],
        [False, True, False, False],
    ]
    assert len(tokens) == 4
    ink = torch.ones(1, 3, 64, 64)
    ink[:, :, 20:24, 42:44] = 0
    assert batches.inked(ink, places=1).tolist() == [[2 * 8 + 5]]


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="PyTorch 2.9 brings Muon")
def test_training_learns_and_what_is_saved_is_what_was_trained(small, options, tmp_path):
    torch.manual_seed(0)
    model = Pretraining(small.vectors, frequent=1, head_weight=0.5)
    losses = list(train(Fabric(accelerator="cpu", devices=1), model, Batches(small, options, seed=0), options))
    assert len(losses) == 30
    assert np.mean(losses[-10:]) < np.mean(losses[:10])
    save(model.clip, small.words, tmp_path / "weights.safetensors")
    config = bundled_config("fedvlp-small")
    loaded = CLIP(**config)
    loaded.load_state_dict(expand(load_file(tmp_path / "weights.safetensors"), config["text_cfg"]["vocab_size"]))
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(loaded.encode_image(images), model.encode_image(images, None), atol=0.02, rtol=0.02)


def test_the_learning_rate_rises_and_falls():
    assert [schedule(step, 1000) for step in (0, 100, 650)] == pytest.approx([1 / 60, 1, 0.5])


def test_validation_by_hand(monkeypatch):
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


def test_probe_by_hand():
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
