"""pFedPG: the server's generator and its training, token by token, and a client's model image by image."""

import pytest
import torch
import torch.nn.functional as F

from fedvlp import PFedPG, ZeroShotCLIP
from fedvlp.clip import zero_shot_text_features
from fedvlp.core.state import Client, ClientUpdate, ServerState
from tests.helpers.slow import CLASSES, assert_same, begin

LABELS = torch.tensor([0, 2, 1])


def make(clip, **options):
    torch.manual_seed(0)
    return PFedPG(CLASSES, 3, clip, **{"prompt_length": 2, **options})


def make_updates(module, server, clients):
    """Compute updates of clients that add noise to their prompts."""
    updates = []
    for number in clients:
        client = Client(number, number, 4 + number)
        prompt = module.server.broadcast(server, client)["prompt"]
        move = torch.randn(prompt.shape, generator=torch.Generator().manual_seed(number))
        updates.append(ClientUpdate(client, {"prompt": prompt + 0.1 * move}, client.num_examples))
    return updates


def reference_prompt(phi, descriptor):
    """Compute Eqs. 3 and 4, token by token."""
    width = phi["query"].shape[1]
    rows = []
    for token in descriptor:
        query = token @ phi["query"]
        powers = [torch.exp(query @ (base @ phi["key"]) / width**0.5) for base in phi["basis"]]
        values = [base @ phi["value"] for base in phi["basis"]]
        rows.append(sum(p * v for p, v in zip(powers, values, strict=True)) / sum(powers) @ phi["out"])
    return torch.stack(rows)


def generator_tensors(state):
    return {name.removeprefix("generator."): value for name, value in state.items() if name != "prompt"}


def test_the_server_moves_towards_the_clients_prompts(clip):
    """phi + alpha sum_n (dP_n / dphi)^T (P'_n - P_n). Other clients keep their descriptors."""
    module = make(clip, server_lr=0.02)
    server = ServerState.start(module.shared_state())
    updates = make_updates(module, server, [0, 2])
    after = module.server.aggregate(server, updates)
    phi = {name: value.double().requires_grad_() for name, value in generator_tensors(server.shared).items()}
    product = torch.zeros((), dtype=torch.float64)
    for update in updates:
        prompt = reference_prompt(phi, phi["descriptors"][update.client.id])
        torch.testing.assert_close(
            prompt.detach().float(), module.server.broadcast(server, update.client)["prompt"], atol=1e-5, rtol=1e-5
        )
        product = product + (prompt * (update.state["prompt"] - prompt).detach()).sum()
    gradients = torch.autograd.grad(product, list(phi.values()))
    for (name, value), gradient in zip(phi.items(), gradients, strict=True):
        moved = after.shared[f"generator.{name}"] - server.shared[f"generator.{name}"]
        assert moved.abs().max() > 1e-4, name
        torch.testing.assert_close(moved.double(), 0.02 * gradient, atol=1e-5, rtol=1e-5)
        assert value.shape == moved.shape
    assert torch.equal(after.shared["generator.descriptors"][1], server.shared["generator.descriptors"][1])
    mean = reference_prompt(generator_tensors(after.shared), after.shared["generator.descriptors"].mean(0))
    torch.testing.assert_close(after.deployed["prompt"], mean, atol=1e-5, rtol=1e-5)
    (phase,) = module.configure_phases()
    assert set(phase.aggregate(server, updates).deployed) == {"prompt"}


@pytest.mark.parametrize("trains_head", [True, False])
def test_loss_and_gradients_match_the_paper(clip, images, trains_head):
    module = make(clip, trains_head=trains_head)
    module.prompt.copy_(0.5 * torch.randn(module.prompt.shape, generator=torch.Generator().manual_seed(3)))
    begin(module, 0)
    assert set(module.trainable_by_name()) == ({"local_prompt", "head"} if trains_head else {"local_prompt"})
    loss = module.training_step((images, LABELS), 0)
    losses = []
    for image, label in zip(images, LABELS, strict=True):
        feature = F.normalize(module.visual(image[None], module.local_prompt[None]).features[0], dim=0)
        logits = torch.stack([row @ feature for row in module.head])
        losses.append(torch.logsumexp(logits, 0) - logits[label])
    expected = sum(losses) / 3
    assert_same(loss, expected, list(module.trainable_by_name().values()))


def test_the_head_starts_as_zero_shot_clip(clip, images):
    module = make(clip, templates=2)
    features = clip.encode_image(images)
    texts = zero_shot_text_features(clip, CLASSES, 2)
    cosines = F.normalize(features, dim=-1) @ F.normalize(texts, dim=-1).T
    torch.testing.assert_close(F.normalize(features, dim=-1) @ module.head.T, clip.logit_scale * cosines)
    torch.testing.assert_close(module.written(features), ZeroShotCLIP(CLASSES, clip, templates=2)(images))


def test_only_the_shared_part_classifies_unseen_domains(clip, images):
    """And images of clients that never took part."""
    module = make(clip)
    features = module.image_features(images)
    torch.testing.assert_close(features, module.visual.encode(images, module.generator(None)[None]))
    with torch.no_grad():
        module.local_prompt.add_(1)
        module.head.mul_(0.5)
    with module.shared_part_only():
        shared = module(images)
    torch.testing.assert_close(shared, module.written(features))
    assert not torch.allclose(module(images), shared, atol=1e-2)
    fresh = make(clip)
    fresh.load_state(fresh.initial_personal_state(fresh.personal_state()))
    torch.testing.assert_close(fresh(images), shared, atol=1e-4, rtol=1e-5)
