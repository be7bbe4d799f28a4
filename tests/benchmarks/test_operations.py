"""Estimated operations against the operations that PyTorch counts."""

import pytest
import torch

from benchmarks.operations import image_tower, packed_text, patches_work, text_tower
from benchmarks.reference_towers import ReferenceText, reference_images
from benchmarks.steps import BATCH_SIZES, least_operations, make_module, reference_operations
from tests.helpers.counting import count_operations

NAMES = ["dog", "fire truck", "The Great Wall of China"]


@pytest.mark.parametrize("cut", [False, True])
def test_operations_of_whole_text_sequences(clip, cut):
    text = ReferenceText(clip, NAMES, 4, cut)
    work = text_tower(clip).whole(len(NAMES), text.length)
    prompt = torch.zeros(4, clip.text_width, requires_grad=True)
    with torch.no_grad():
        assert count_operations(lambda: text(prompt)) == work.forward
    assert count_operations(lambda: text(prompt).sum().backward()) == work.both


def test_operations_of_whole_images(clip):
    images = torch.zeros(2, 3, clip.image_size, clip.image_size)
    prompts = torch.zeros(1, 3, clip.image_width, requires_grad=True)  # otherwise an uncounted kernel runs
    tower = image_tower(clip)
    work = tower.whole(2, clip.num_image_tokens + 3).forward + 2 * patches_work(clip)
    read_besides = (
        2 * 2 * tower.width * (clip.num_image_tokens + 2) * tower.joint
    )  # PyTorch's count projects all tokens
    scores = 2 * 2 * 4 * 3 * tower.width**2
    assert count_operations(lambda: reference_images(clip, images, prompts)) == work + read_besides + scores


def test_packed_text_counts_each_token_and_each_pair_once(clip):
    lengths = [3, 4, 7]  # tokens after the prompt
    sentences = [f"{name}." for name in NAMES]
    assert [len(ids) - 1 for ids in clip.tokenize(sentences)] == lengths
    width = clip.text_width
    depth = clip.text.depth
    tokens = 1 + 4 + sum(lengths)
    ends = len(lengths)
    work = packed_text(clip, NAMES, 4)
    linear = 24 * width**2 * tokens * (depth - 1) + (4 * tokens + 20 * ends) * width**2
    linear += 2 * width * clip.embed_dim * ends
    pairs = 5 * 6 / 2 + sum(5 * length + length * (length + 1) / 2 for length in lengths)
    assert work.linear == linear
    assert work.attention == 4 * width * (pairs * (depth - 1) + sum(5 + length for length in lengths))


def test_packed_text_counts_shared_first_words_once(clip):
    separate = packed_text(clip, ["fire truck", "hot dog"], 4)
    shared = packed_text(clip, ["fire truck", "fire dog"], 4)
    assert separate.linear - shared.linear == clip.text_width**2 * (24 * (clip.text.depth - 1) + 4)
    assert separate.attention - shared.attention == 4 * clip.text_width * 6 * (clip.text.depth - 1)


@pytest.mark.parametrize("method", sorted(BATCH_SIZES))
def test_the_floor_is_below_cut_and_whole_sequences(clip, method):
    make_module(method, clip, NAMES)
    least = least_operations(method, clip, NAMES, 4)
    cut = reference_operations(method, clip, len(NAMES), 45, 4)
    whole = reference_operations(method, clip, len(NAMES), 77, 4)
    assert 0 < least < cut < whole
