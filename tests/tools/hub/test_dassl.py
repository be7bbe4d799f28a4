"""Dassl's checkpoints, made here as it makes them: what comes over, and what is refused."""

from __future__ import annotations

import pytest
import torch

import fedvlp
from fedvlp import FedMaPLe, PromptFL, UserError
from fedvlp.commands.cli import main
from fedvlp.tools.hub.dassl import convert_dassl
from tests.helpers.dassl import CLASSES, saved


@pytest.fixture
def ctx(clip):
    """A prompt of four vectors, which half precision holds."""
    return torch.randn(4, clip.text_width, generator=torch.Generator().manual_seed(9)).half()


@pytest.mark.parametrize(("prefix", "position"), [("", "end"), ("prompt_learner.", "middle"), ("module.", "end")])
def test_coops_and_promptfls_prompt_classifies_as_ours_would(tmp_path, clip, ctx, prefix, position, capsys):
    path = saved(tmp_path / "model.pth.tar-50", {"ctx": ctx}, clip, prefix=prefix)
    (tmp_path / "classes.txt").write_text("\n".join(CLASSES))
    arguments = ["--to", tmp_path / "out", "--classes", tmp_path / "classes.txt", "--clip.name", "fedvlp-tiny"]
    assert main(["convert", str(path), *map(str, arguments), "--class_position", position]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "PromptFL, of epoch 50"
    assert "ctx [4, 64] float16: taken over" in lines
    assert "-> prompt [4, 64] float32" in lines
    assert any(line.startswith("token_suffix: left out") for line in lines)
    expected = PromptFL(CLASSES, clip, prompt_length=4, class_position=position).eval()
    expected.load_state({"prompt": ctx.float()})
    loaded = fedvlp.from_pretrained(tmp_path / "out", clip=clip)
    images = torch.randn(2, 3, loaded.image_size, loaded.image_size)
    assert torch.equal(loaded(images), expected(images))


@pytest.mark.parametrize(("words", "init_words"), [("of a ", "a photo of a"), ("", None)])
def test_maples_prompts_and_maps_come_over(tmp_path, clip, words, init_words):
    generator = torch.Generator().manual_seed(7)
    width, tokens = clip.text_width, clip.image_width

    def drawn(*shape):
        return (0.1 * torch.randn(*shape, generator=generator)).half().float()

    learned = {
        "ctx": drawn(2, width),
        "proj.weight": drawn(tokens, width),
        "proj.bias": drawn(tokens),
        "compound_prompts_text.0": drawn(2, width),
        "compound_prompt_projections.0.weight": drawn(tokens, width),
        "compound_prompt_projections.0.bias": drawn(tokens),
    }
    frozen = {"image_encoder.conv1.weight": torch.ones(2), "logit_scale": torch.ones([])}
    path = saved(tmp_path / "model.pth.tar-5", learned, clip, 2, words, "prompt_learner.", **frozen)
    lines = convert_dassl(path, tmp_path / "out", CLASSES, clip)
    assert "2 tensors of the frozen CLIP: left out, as CLIP is loaded by its name" in lines
    method = fedvlp.from_pretrained(tmp_path / "out", clip=clip).method
    assert isinstance(method, FedMaPLe)
    assert method.describe()["init_words"] == init_words
    assert torch.equal(method.prompts[1], learned["compound_prompts_text.0"])
    visual = method.deep_prompts()["visual"]
    for block, (text, name) in enumerate(
        [("ctx", "proj"), ("compound_prompts_text.0", "compound_prompt_projections.0")]
    ):
        expected = torch.nn.functional.linear(learned[text], learned[f"{name}.weight"], learned[f"{name}.bias"])
        assert torch.allclose(visual[block], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["dog", "guitar", "pale_horse"], "the first that is not at its place is 'guitar'"),
        (["dog", "horse", "guitar"], "the first that is not at its place is"),
        (["dog", "guitar"], "is of 3 classes; 2 were given"),
    ],
)
def test_other_classes_are_refused(tmp_path, clip, ctx, names, message, capsys):
    path = saved(tmp_path / "w.pth.tar", {"ctx": ctx}, clip)
    with pytest.raises(UserError, match=message):
        convert_dassl(path, tmp_path / "out", names, clip)
    (tmp_path / "classes.txt").write_text("\n".join(names))
    options = ["--to", tmp_path / "out", "--classes", tmp_path / "classes.txt", "--clip.name", "fedvlp-tiny"]
    assert main(["convert", str(path), *map(str, options)]) == 1
    assert message in capsys.readouterr().err  # also where it names a class of the file
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("learned", "message"),
    [
        ({"ctx": torch.ones(3, 4, 64)}, "a prompt for each class"),
        ({"ctx": torch.ones(4, 64), "meta_net.linear1.weight": torch.ones(2, 2)}, "its tensors are ctx, meta_net"),
        ({"ctx": torch.full((4, 64), torch.nan)}, "values that are not finite"),
        ({"ctx": torch.ones(4, 32)}, "in shape"),
    ],
)
def test_what_no_method_here_has_is_refused(tmp_path, clip, learned, message):
    path = saved(tmp_path / "w.pth.tar", learned, clip)
    with pytest.raises(UserError, match=message):
        convert_dassl(path, tmp_path / "out", CLASSES, clip)


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path, clip):
    torch.save({"state_dict": 3}, tmp_path / "w.pth.tar")
    with pytest.raises(UserError, match="holds no state dict"):
        convert_dassl(tmp_path / "w.pth.tar", tmp_path / "out", CLASSES, clip)
    with pytest.raises(UserError, match="There is no file"):
        convert_dassl(tmp_path / "none", tmp_path / "out", CLASSES, clip)


@pytest.mark.parametrize("content", ["", "dog\ndog\n"])
def test_a_list_of_classes_with_none_or_one_twice_is_refused(tmp_path, content, capsys):
    (tmp_path / "classes.txt").write_text(content)
    assert main(["convert", "w.pth.tar", "--to", "out", "--classes", str(tmp_path / "classes.txt")]) == 1
    assert "Expected a class on each line" in capsys.readouterr().err
