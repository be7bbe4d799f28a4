"""Reference steps, whole and cut, against fedvlp: equal prompts, routes, images, losses and gradients."""

from dataclasses import replace

import pytest
import torch

from benchmarks.reference_steps import REFERENCES
from benchmarks.reference_towers import ReferenceText
from benchmarks.steps import StepBatch, make_batch, make_module
from fedvlp.clip import load_clip
from tests.helpers.fake_cuda import fake_cuda, move_module


def gradients(module):
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None and p.grad.any()}


@pytest.mark.parametrize("cut", [False, True], ids=["reference", "cut"])
@pytest.mark.parametrize("method", sorted(REFERENCES))
def test_the_reference_has_equal_loss_and_gradients(clip, method, cut):
    names = ["dog", "fire truck", "The Great Wall of China", "t-shirt"]
    module = make_module(method, clip, names)
    made = make_batch(module, 6)
    batch = replace(made, constants=module.precomputed(made.images))
    ours = module.training_step((batch.constants, batch.labels), 0)
    ours.backward()
    expected = gradients(module)
    module.zero_grad()
    loss = REFERENCES[method](module, cut).loss(batch)
    loss.backward()
    found = gradients(module)
    assert expected
    assert found.keys() == expected.keys()
    torch.testing.assert_close(loss, ours, rtol=1e-4, atol=0)
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-4 * expected[name].abs().max().item())


def test_texts_of_some_classes_equal_texts_of_all(clip):
    text = ReferenceText(clip, ["dog", "cat", "The Great Wall of China"], 4, cut=True)
    prompt = torch.randn(4, clip.text_width, generator=torch.Generator().manual_seed(0))
    assert len(text.first(2)) == 2
    torch.testing.assert_close(text.first(2)(prompt), text(prompt)[:2])


def test_only_some_of_many_classes_are_measured(clip):
    module = make_module("PromptFL", clip, [f"thing {index}" for index in range(120)])
    call = REFERENCES["PromptFL"](module, cut=True).text_call("text", module.prompt)
    call.run()
    assert call.label == "text, 40 of 120 classes"
    assert call.times == 3


@pytest.mark.parametrize("method", sorted(REFERENCES))
def test_no_tensor_of_a_reference_stays_on_the_cpu(monkeypatch, method):
    module = make_module(method, load_clip("fedvlp-tiny"), ["dog", "cat"])
    made = make_batch(module, 4)
    REFERENCES[method](module, cut=False).loss(made)  # encode the templates first, because fake tensors have no values
    monkeypatch.setattr(torch.autograd, "backward", lambda *_: None)
    monkeypatch.setattr(torch.Tensor, "backward", lambda _: None)
    with fake_cuda() as to_cuda:
        move_module(module, to_cuda)
        constants = {name: to_cuda(value) for name, value in made.constants.items()}
        batch = StepBatch(to_cuda(made.images), to_cuda(made.labels), constants)
        reference = REFERENCES[method](module, cut=False)
        assert reference.loss(batch).device.type == "cuda"
        for call in reference.calls(batch):
            call.run()
