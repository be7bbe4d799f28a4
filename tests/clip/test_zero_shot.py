import logging

import pytest
import torch
import torch.nn.functional as F

from fedvlp.clip import CLIPSpec, ZeroShotClassifier, load_clip, zero_shot_text_features
from fedvlp.clip.zero_shot import choose_templates, tokenize_classes
from fedvlp.utils.errors import UserError

NAMES = ["dog", "Alarm_Clock", "see-saw"]
WORDS = ["dog", "Alarm Clock", "see-saw"]


def slow_features(clip, templates):
    total = 0
    for template in templates:
        total += clip.encode_text(clip.tokenizer([template.format(word) for word in WORDS]))
    return F.normalize(total / len(templates), dim=-1)


@pytest.mark.parametrize(("kind", "templates"), [("vit", 1), ("vit", 8), ("custom", ["{}", "a {} in a video game."])])
def test_features_are_the_normalised_mean_of_templates(make_clip, configs, kind, templates):
    clip = make_clip(configs[kind])
    found = zero_shot_text_features(clip, NAMES, templates)
    torch.testing.assert_close(found, slow_features(clip, choose_templates(templates)), atol=1e-5, rtol=1e-5)
    assert not found.requires_grad


@pytest.mark.parametrize("number", [1, 60])
def test_a_clip_has_templates_of_its_own(make_clip, configs, number):
    own = ["an image that shows {}.", "{}, magnified"]
    clip = make_clip(configs["vit"], spec=CLIPSpec(templates=own))
    found = ZeroShotClassifier(clip, NAMES, number).text_features
    torch.testing.assert_close(found, slow_features(clip, own[:number]), atol=1e-5, rtol=1e-5)
    given = zero_shot_text_features(clip, NAMES, "art of a {}.")
    torch.testing.assert_close(given, slow_features(clip, ["art of a {}."]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("read", [zero_shot_text_features, lambda clip, names: tokenize_classes(clip, names)])
def test_a_class_that_is_longer_than_the_context_is_refused(clip, read):
    fits = "w " * 69  # with a start token, "a photo of a", a full stop and an end token
    assert len(read(clip, ["dog", fits + "w"])) == 2
    with pytest.raises(
        UserError, match=r"'w w .*w' makes 78 tokens in 'a photo of a {}.', but the text tower reads 77"
    ):
        read(clip, ["dog", fits + "w w"])


def test_a_class_skips_the_templates_in_which_it_would_be_cut(clip, caplog):
    templates = ["a {}.", "a photo of a {}.", "an origami {}."]
    long = "w " * 71 + "w"
    with caplog.at_level(logging.WARNING, "fedvlp"):
        found = zero_shot_text_features(clip, ["dog", long, "star"], templates)
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == [
        "1 of 3 classes skip templates that make more than 77 tokens with their names"
    ]
    assert caplog.text.strip().endswith("w w' skips 1 of 3.")
    torch.testing.assert_close(found[1:2], zero_shot_text_features(clip, [long], [templates[0], templates[2]]))
    torch.testing.assert_close(
        found[[0, 2]], zero_shot_text_features(clip, ["dog", "star"], templates), atol=1e-6, rtol=0
    )


def test_text_features_follow_the_clip_to_another_device():
    classifier = ZeroShotClassifier(load_clip("fedvlp-tiny"), ["red", "pale blue"])
    assert classifier.text_features.device.type == "cpu"
    classifier.clip.to("meta")
    assert classifier.text_features.device.type == "meta"


@pytest.mark.parametrize("templates", [0, 81, [], ["no place"], ["{} {}"]])
def test_wrong_templates_are_refused(templates):
    with pytest.raises(UserError):
        choose_templates(templates)
