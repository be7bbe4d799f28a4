"""All kinds of text towers against the model's own forward pass, with prompts inserted by hooks."""

from contextlib import ExitStack
from copy import deepcopy

import pytest
import torch
from torch.nn.functional import normalize

from fedvlp.clip import PromptedTextEncoder
from fedvlp.clip.packing import CausalRows, make_rows
from fedvlp.clip.text_towers import make_text_tower
from fedvlp.methods.prompts import DeepPromptedCLIP
from fedvlp.utils.errors import UserError
from tests.helpers.made_up_clips import KINDS, made_up_clip
from tests.helpers.shapes import unchecked

NAMES = {"cat": 1, "dog photo": 2, "猫": 1, "собака of the cat": 4}
"""The number of tokens in each name, in made-up tokenizers."""
NO_START = ("worldwide T5", "siglip", "siglip2", "mt5")


@pytest.fixture(scope="module", params=KINDS)
def clip(request, tmp_path_factory):
    made = made_up_clip(request.param, tmp_path_factory.mktemp("clip"))
    made.kind = request.param
    return made


def names_of(clip):
    """CLIP's own tokenizer needs several tokens for a word in another script."""
    is_clips = not hasattr(clip.tokenizer, "tokenizer")
    return {name: number for name, number in NAMES.items() if name.isascii() or not is_clips}


def test_words_have_the_features_of_the_models_own_pass(clip):
    texts = ["a photo of a cat.", "a", "the painting of the cat, and the dog", "собака", "кот", "猫"]
    features = make_rows(clip.text, clip.tokenize(texts)).encode_words(clip.text)
    torch.testing.assert_close(features, clip.encode_text(clip.tokenizer(texts)), atol=1e-5, rtol=0)
    distances = torch.cdist(features, features) + torch.eye(len(texts))
    assert distances.min() > 0.05  # names in other scripts are distinguished as well


@pytest.mark.parametrize(("kind", "option"), [("coca", "correct_cls_mask"), ("mobileclip", "use_pad_mask")])
def test_masks_of_padding_that_no_published_weights_have(kind, option, tmp_path):
    clip = made_up_clip(kind, tmp_path)
    texts = ["a photo of a cat.", "a"]
    before = clip.encode_text(clip.tokenizer(texts))
    setattr(clip.model.text, option, True)
    clip.text = make_text_tower(clip.model, clip.token_layout)
    features = make_rows(clip.text, clip.tokenize(texts)).encode_words(clip.text)
    torch.testing.assert_close(features, clip.encode_text(clip.tokenizer(texts)), atol=1e-5, rtol=0)
    assert (features - before).abs().max() > 0.01


def test_packed_rows_are_for_causal_towers_that_read_the_end(clip):
    rows = make_rows(clip.text, clip.tokenize(["a cat", "a dog"]))
    assert isinstance(rows, CausalRows) == (clip.kind in ("clip", "worldwide", "worldwide T5"))


PROMPTED = [*NAMES, "cat-dog", "T-shirt 42", "(cat) 3D", "'s dog", "U.S. painting", "naïve café", "кот и 2 犬"]
"""Names with hyphens, digits, punctuation, and letters that are not ASCII."""


@pytest.mark.parametrize(
    ("position", "sentence"),
    [("end", "a photo of the {}."), ("middle", "a photo {} of the."), ("front", "{} a photo of the.")],
)
def test_a_prompt_made_of_words_has_the_features_of_the_sentence(clip, position, sentence):
    """SigLIP 2 and RoBERTa use other tokens for a sentence's first word, in the prompt or in the class."""
    encoder = PromptedTextEncoder(clip, PROMPTED, prompt_length=4, class_position=position)
    features = encoder(encoder.word_vectors("a photo of the"))
    expected = clip.encode_text(clip.tokenizer([sentence.replace("{}", name) for name in PROMPTED]))
    torch.testing.assert_close(features, expected, atol=1e-5, rtol=0)
    assert torch.cosine_similarity(features.double(), expected.double()).min() > 1 - 1e-6


def test_words_outside_the_prompt_follow_it(clip):
    """A prompt as in MaPLe that is shorter than its initial words."""
    model = DeepPromptedCLIP(clip, ["cat", "dog photo"], prompt_length=2, init_words="a photo of the")
    features = model.text(model.initial_text_prompts(1)[0])
    expected = clip.encode_text(clip.tokenizer(["a photo of the cat.", "a photo of the dog photo."]))
    torch.testing.assert_close(features, expected, atol=1e-5, rtol=0)


def blocks_of(clip):
    transformer = clip.model.text.transformer
    lists = {"mt5": "block", "nllb": "layers"}
    lists |= dict.fromkeys(("biomedclip", "roberta", "xlm-roberta"), "encoder.layer")
    return transformer.get_submodule(lists.get(clip.kind, "resblocks"))


def own_features(clip, name, prompts, position):
    """Compute a class's feature by the model's own pass; `prompts` [J + 1, L, D] replace tokens inside."""
    length = prompts.shape[1]
    start = 0 if clip.kind in NO_START else 1
    before = {"end": length, "middle": length // 2, "front": 0}[position]
    behind = start + before + NAMES[name]
    places = [*range(start, start + before), *range(behind, behind + length - before)]
    # Arbitrary words of one token each, at the prompt's positions.
    ids = clip.tokenizer([" ".join([*["a"] * before, name, *["a"] * (length - before)]) + "."])

    def replaced(hidden, level):
        return hidden.index_copy(1, torch.tensor(places), prompts[None, level])

    embedding = clip.text.embedding
    with ExitStack() as hooks:
        hooks.enter_context(embedding.register_forward_hook(lambda _, __, output: replaced(output, 0)))
        for level, block in enumerate(blocks_of(clip)):
            if 0 < level < len(prompts):
                change = lambda _, inputs, level=level: (replaced(inputs[0], level), *inputs[1:])  # noqa: E731
                hooks.enter_context(block.register_forward_pre_hook(change))
        return clip.encode_text(ids)[0]


def features_and_gradient(function, prompts):
    """Compute features, and the gradient of their sum with different weights."""
    prompts = prompts.clone().requires_grad_()
    features = function(prompts)
    weights = torch.randn(features.shape, generator=torch.Generator().manual_seed(1))
    (normalize(features, dim=-1) * weights).sum().backward()
    return features.detach(), prompts.grad


@pytest.mark.parametrize(
    ("position", "is_class_specific", "levels"), [("end", False, 3), ("middle", False, 1), ("front", True, 3)]
)
def test_prompts_have_the_features_and_gradients_of_the_models_own_pass(clip, position, is_class_specific, levels):
    """Two prompts together; with three levels they are replaced before each block."""
    names = names_of(clip)
    count = len(names) if is_class_specific else 1
    generator = torch.Generator().manual_seed(0)
    prompts = 0.5 * torch.randn(2, levels, count, 3, clip.text_width, generator=generator)
    encoder = PromptedTextEncoder(
        clip, list(names), prompt_length=3, class_position=position, class_specific=is_class_specific
    )

    def encode(given):
        given = given.flatten(2, 3)
        return encoder(given[:, 0], given[:, 1:] if levels > 1 else None)

    def one_by_one(given):
        rows = [[own_features(clip, n, p[:, c % count], position) for c, n in enumerate(names)] for p in given]
        return torch.stack([torch.stack(row) for row in rows])

    found = features_and_gradient(encode, prompts)
    expected = features_and_gradient(one_by_one, prompts)
    torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[1], expected[1], atol=1e-5, rtol=1e-4)
    assert expected[1].abs().amax(dim=(0, 2, 3, 4)).min() > 1e-3  # each level counts


def test_a_prompt_may_fill_the_context(clip):
    special = 1 if clip.kind in NO_START else 2
    most = 64 - special - 2  # besides "cat" and the full stop
    for count, is_cut in ((most, False), (most + 1, True)):
        text = "a " * count + "cat."
        assert torch.equal(clip.tokenizer(text), clip.tokenizer(text, context_length=80)[:, :64]) != is_cut
    encoder = PromptedTextEncoder(clip, ["cat"], prompt_length=most)
    prompt = torch.randn(most, clip.text_width, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(encoder(prompt)[0], own_features(clip, "cat", prompt[None], "end"), atol=1e-5, rtol=1e-5)
    with pytest.raises(UserError, match=f"at most {most} "):
        PromptedTextEncoder(clip, ["cat"], prompt_length=most + 1)


def test_a_full_stop_may_become_a_part_of_the_name(tmp_path):
    clip = made_up_clip("siglip2", tmp_path)
    clip.tokenizer.tokenizer.add_tokens(["U.S."])
    name, end = clip.tokenize(["U.S."])[0]
    assert len(clip.tokenize(["U.S"])[0]) > 2
    encoder = PromptedTextEncoder(clip, ["U.S"], prompt_length=2, class_position="front")
    assert encoder.rows.ids[0, :4].tolist() == [name, -1, -2, end]


@pytest.mark.parametrize("clip", ["clip", "qk_norm", "mt5"], indirect=True)
def test_rounded_weights_change_little(clip):
    """As in bf16-mixed, only CLIP's own kind of block is rounded, in a copy with separate towers."""
    rounded = deepcopy(clip)
    rounded.cast_towers(torch.bfloat16)
    if clip.text.blocks is not None:
        assert rounded.text.blocks.is_cast == ("qk_norm" not in clip.kind)
        assert not clip.text.blocks.is_cast
    prompts = torch.randn(2, 3, clip.text_width, generator=torch.Generator().manual_seed(0))
    exact = features_and_gradient(PromptedTextEncoder(clip, ["cat", "dog"], prompt_length=3), prompts)
    with torch.autocast("cpu", torch.bfloat16):
        found = features_and_gradient(PromptedTextEncoder(rounded, ["cat", "dog"], prompt_length=3), prompts)
    assert torch.cosine_similarity(found[0].float(), exact[0], dim=-1).min() > 0.999
    assert torch.cosine_similarity(found[1].flatten(1), exact[1].flatten(1)).min() > 0.98


@pytest.mark.every_config
@pytest.mark.parametrize("clip", ["qk_norm"], indirect=True)
def test_an_exported_graph_takes_any_number_of_prompts(clip):
    encoder = PromptedTextEncoder(clip, ["cat", "dog photo"], prompt_length=3)
    prompts = torch.randn(5, 3, clip.text_width, generator=torch.Generator().manual_seed(0))
    shapes = {"prompt": {0: torch.export.Dim("prompts")}}
    with unchecked(), torch.no_grad():
        graph = torch.export.export(encoder, (prompts[:2],), dynamic_shapes=shapes, strict=False).module()
        torch.testing.assert_close(graph(prompts), encoder(prompts), atol=1e-5, rtol=1e-5)


def test_the_scale_may_be_a_list_of_one(clip):
    assert clip.logit_scale == pytest.approx(1 / 0.07)
