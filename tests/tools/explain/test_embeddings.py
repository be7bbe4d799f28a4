from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedvlp.methods import ADAPT, PLAN, PromptFL, ZeroShotCLIP
from fedvlp.tools.explain.embeddings import check_tsne, embeddings, neighbour_agreement, tsne, tsne_picture
from fedvlp.utils.errors import UserError

NAMES = ["cat", "dog", "bird"]


def test_equal_calls_give_equal_places_that_keep_clusters_apart():
    generator = torch.Generator().manual_seed(0)
    labels = [0] * 10 + [1] * 10
    features = torch.randn(20, 5, generator=generator) + 20 * torch.tensor(labels)[:, None]
    torch.manual_seed(1)
    first = tsne(features)
    torch.manual_seed(2)
    assert np.array_equal(tsne(features), first)
    assert first.shape == (20, 2)
    assert neighbour_agreement(first, labels) == 1


@pytest.mark.parametrize("perplexity", [0, 20, 25])
def test_perplexity_must_fit_the_points(perplexity):
    with pytest.raises(UserError, match="below the number of images, 20"):
        check_tsne(20, perplexity)


def test_perplexity_that_fits():
    assert check_tsne(20, 19.5) == 19.5
    assert check_tsne(20, None) == pytest.approx(19 / 3)
    assert check_tsne(1000, None) == 30
    with pytest.raises(UserError, match="at least 4"):
        check_tsne(3, None)


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    with pytest.raises(UserError, match=r"pip install \"fedvlp\[explain\]\""):
        check_tsne(20, None)


def test_what_is_embedded(clip):
    images = torch.randn(2, 3, clip.image_size, clip.image_size, generator=torch.Generator().manual_seed(3))
    zero_shot = ZeroShotCLIP(NAMES, clip=clip)
    plain = F.normalize(clip.encode_image(images), dim=-1)
    prompted = PromptFL(NAMES, clip=clip)
    logits = prompted(images).detach()
    after, before, shown = embeddings(prompted, zero_shot, images)
    assert shown == "class logits"
    torch.testing.assert_close(after, logits - logits.mean(dim=1, keepdim=True))
    assert before.shape == (2, 3)
    for module in (PLAN(NAMES, 2, clip), ADAPT(NAMES, ["ink", "oil"], clip)):
        features, before, shown = embeddings(module, zero_shot, images)
        assert shown == "image features"
        torch.testing.assert_close(features.norm(dim=1), torch.ones(2))
        assert not torch.allclose(features, plain, atol=1e-3)
        torch.testing.assert_close(before, plain)
        texts = module.prompted.text_features(module.pool.globals) if isinstance(module, PLAN) else None
        if texts is not None:
            wanted = features @ F.normalize(texts, dim=-1).T * clip.logit_scale
            torch.testing.assert_close(module(images), wanted, rtol=1e-4, atol=1e-3)


def points(count):
    return np.stack([np.arange(count), np.arange(count) % 3], axis=1).astype(np.float32)


def test_picture_names_classes_and_domains():
    labels = [0, 0, 1, 2, 2, 2]
    domains = ["ink"] * 3 + ["oil"] * 3
    picture = tsne_picture({"before": points(6), "after": points(6)}, labels, domains, NAMES, "class logits")
    axes = picture.figure.axes
    assert [panel.get_title() for panel in axes] == ["before", "after"]
    assert [text.get_text() for text in picture.figure.legends[0].texts] == ["cat", "dog", "bird", "ink", "oil"]
    assert sum(len(drawn.get_offsets()) for drawn in axes[1].collections) == 6
    assert "t-SNE of class logits, for 6 images of ink, oil" in picture.caption
    assert "after: 83%" in picture.alt  # the one dog is alone
    assert picture.image("png").startswith(b"\x89PNG")


def test_more_classes_than_markers_are_named_in_place():
    names = [f"class {index}" for index in range(26)]
    picture = tsne_picture({"after": points(26)}, list(range(26)), ["ink"] * 26, names, "image features")
    assert [text.get_text() for text in picture.figure.axes[0].texts] == names
    assert not picture.figure.legends
