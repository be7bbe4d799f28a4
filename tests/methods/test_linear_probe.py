"""The linear probe: its three starts, and its first round."""

import pytest
import torch
import torch.nn.functional as F

from fedvlp import LinearProbe
from fedvlp.core.phases import RoundContext
from fedvlp.core.state import Client, ClientUpdate, ServerState

NAMES = ["dog", "red car", "owl"]


def images(classes):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12, 128, generator=generator), torch.tensor(classes).repeat(12 // len(classes))


def run_round(method, features, labels, server):
    """Run a round of two clients with batches of four; return the server and which steps had a gradient."""
    (phase,) = method.configure_phases()
    updates, needs_gradient = [], []
    for number, part in enumerate((slice(0, 4), slice(4, 12))):
        client = Client(number, 0, len(labels[part]))
        method.load_state(phase.broadcast(server, client))
        method.start_client(RoundContext(server.round, phase, client))
        optimizer = method.configure_optimizers()
        for batch in torch.arange(12)[part].split(4):
            loss = method.training_step(({"features": features[batch]}, labels[batch]), 0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            needs_gradient.append(bool(method.weight.grad.abs().sum() > 0))
        state = {name: value.detach().clone() for name, value in method.upload_state().items()}
        updates.append(ClientUpdate(client, state, client.num_examples))
    return phase.aggregate(server, updates), needs_gradient


def test_the_first_round_computes_class_means_and_the_next_trains(clip):
    method = LinearProbe(NAMES, clip, start="class_means")
    features, labels = images([0, 2])
    server, moved = run_round(method, features, labels, ServerState.start(method.shared_state()))
    assert not any(moved)
    unit = F.normalize(features, dim=-1)
    for label in (0, 2):
        mean = sum(unit[i] for i in range(12) if labels[i] == label)
        torch.testing.assert_close(server.shared["weight"][label], mean / mean.norm(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(server.shared["weight"][1], method.text_features[1])
    server = ServerState(server.shared, deployed=server.deployed, memory=server.memory, round=1)
    later, moved = run_round(method, features, labels, server)
    assert all(moved)
    assert not torch.allclose(later.shared["weight"], server.shared["weight"])


@pytest.mark.parametrize("start", ["zeros", "text"])
def test_other_starts_train_in_the_first_round(clip, start):
    method = LinearProbe(NAMES, clip, start=start)
    features, labels = images([0, 1, 2])
    expected = torch.zeros(3, 128) if start == "zeros" else method.text_features
    assert torch.equal(method.weight, expected)
    _, moved = run_round(method, features, labels, ServerState.start(method.shared_state()))
    assert all(moved)
