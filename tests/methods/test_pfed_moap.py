"""pFedMoAP: its logits image by image, the prompts that the server lends, and its learning rates."""

import pytest
import torch
import torch.nn.functional as F

from fedvlp import PFedMoAP
from fedvlp.core.slots import Slots
from fedvlp.core.state import Client, ClientUpdate, ServerState
from fedvlp.methods.pfed_moap import ExpertPool
from tests.helpers.slow import CLASSES, assert_same, begin

LABELS = torch.tensor([0, 2, 1])


def make(clip, **options):
    """Create a client, one of four, with two experts and an empty third slot."""
    torch.manual_seed(0)
    module = PFedMoAP(CLASSES, 4, clip, **{"prompt_length": 4, "heads": 4, **options})
    with torch.no_grad():
        module.local_prompt.add_(0.5 * torch.randn_like(module.local_prompt))
        module.experts[:2] = 0.5 * torch.randn_like(module.experts[:2])
        module.experts[2] = 0
    return module


def linear(layer, vector):
    return layer.weight @ vector + layer.bias


def reference_logit(module, image, label, prompts):
    """Compute lambda cos(f, h) / tau + <Pool f, Attn> / tau of one image and class, by head and expert."""
    clip = module.clip
    gating = module.gating
    feature = F.normalize(clip.encode_image(image[None])[0], dim=0)
    texts = [F.normalize(module.text(prompt)[label], dim=0) for prompt in prompts]
    every = max(1, clip.embed_dim // 128)
    thin = feature[::every]
    query = linear(gating.query, thin)
    keys = [linear(gating.key, text[::every]) for text in texts]
    values = [linear(gating.value, text[::every]) for text in texts]
    gathered = []
    size = len(thin) // gating.heads
    for head in range(gating.heads):
        own = slice(head * size, (head + 1) * size)
        powers = [torch.exp(gating.scale * (query[own] @ key[own])) for key in keys]
        gathered.append(sum(power * value[own] for power, value in zip(powers, values, strict=True)) / sum(powers))
    mixed = thin @ linear(gating.out, torch.cat(gathered))
    return clip.logit_scale * (module.local_weight * (feature @ texts[0]) + mixed)


@pytest.mark.parametrize("options", [{}, {"local_weight": 0.2, "attention_scale": 3.0, "heads": 2}])
def test_loss_and_gradients_match_the_paper(clip, images, options):
    """Experts get no gradient, and the empty slot has no effect."""
    module = make(clip, **options)
    prompts = [module.local_prompt, module.experts[0], module.experts[1]]
    trained = list(module.trainable_by_name().values())
    loss = module.training_step((images, LABELS), 0)
    losses = []
    for image, label in zip(images, LABELS, strict=True):
        logits = torch.stack([reference_logit(module, image, index, prompts) for index in range(3)])
        losses.append(torch.logsumexp(logits, 0) - logits[label])
    expected = sum(losses) / 3
    assert len(trained) == 9
    assert_same(loss, expected, trained)


def test_only_the_mean_prompt_classifies_unseen_domains(clip, images):
    module = make(clip)
    features = F.normalize(clip.encode_image(images), dim=-1)
    expected = clip.logit_scale * features @ F.normalize(module.text(module.prompt), dim=-1).T
    with module.shared_part_only():
        torch.testing.assert_close(module(images), expected)
    module.load_state(module.initial_personal_state(module.personal_state()))
    torch.testing.assert_close(module(images), expected, msg="a client that never took part uses only the mean prompt")


def make_server(*values):
    """Create a server with one-number prompts of its clients, or None for a client that has not uploaded."""
    server = ServerState.start({"prompts": torch.zeros(len(values), 1, 1), "prompt": torch.zeros(1, 1)})
    return server.updated(
        {"prompts": torch.tensor([0.0 if value is None else value for value in values])[:, None, None]}
    )


def borrow(pool, server, client):
    return pool.broadcast(server, Client(client, 0, 5))["nonlocal_prompts"].flatten().tolist()


def test_the_server_lends_the_nearest_prompts():
    server = make_server(5.0, 1.0, None, 9.5, 6.0)
    pool = ExpertPool(2, Slots("client", 5))
    assert borrow(pool, server, 0) == [6.0, 1.0]
    assert borrow(pool, server, 1) == [5.0, 6.0]
    assert borrow(pool, server, 3) == [6.0, 5.0]
    assert borrow(pool, server, 2) == [0.0, 0.0], "a client that has not uploaded borrows nothing"
    assert borrow(ExpertPool(4, Slots("client", 5)), server, 4) == [5.0, 9.5, 1.0, 0.0]


def test_the_mean_prompt_weights_the_cohort_by_its_images():
    server = make_server(5.0, 1.0, None)
    sent = [(0, 2.0, 10), (2, 6.0, 30)]
    updates = [ClientUpdate(Client(i, i, n), {"prompts": torch.tensor([[value]])}, n) for i, value, n in sent]
    after = ExpertPool(1, Slots("client", 3)).aggregate(server, updates)
    assert after.shared["prompts"].flatten().tolist() == [2.0, 1.0, 6.0]
    assert after.deployed["prompt"].item() == 5.0


def test_the_gating_has_its_own_learning_rate(clip, images):
    """Also, a client starts from the mean prompt and the downloaded experts."""
    module = make(clip, gating_lr=0.03)
    module.nonlocal_prompts.copy_(module.experts)
    begin(module, 0, round=1)
    assert torch.equal(module.local_prompt, module.prompt)
    before = {name: value.detach().clone() for name, value in module.trainable_by_name().items()}
    optimizer = module.configure_optimizers()
    module.training_step((images, LABELS), 0).backward()
    optimizer.step()
    for name, value in module.trainable_by_name().items():
        rate = 0.002 if name == "local_prompt" else 0.03
        torch.testing.assert_close(value.detach(), before[name] - rate * value.grad)
