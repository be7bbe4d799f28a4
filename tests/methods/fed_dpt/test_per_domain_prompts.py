"""Prompts of which each client trains its own domain's: how its copies of the others move, and what is sent."""

from __future__ import annotations

import pytest
import torch

from fedvlp.core.phases import RoundContext, check_phases
from fedvlp.core.state import Client, ServerState, numel
from fedvlp.methods import ADAPT, FedDPT
from fedvlp.methods.fed_dpt.per_domain_prompts import PerDomainPrompts
from fedvlp.utils.errors import UserError


def test_copies_move_towards_the_broadcast_of_the_round_by_hand():
    """Eq. 8 over two steps and a second round, for one number a prompt and alpha = 0.75."""
    stack = PerDomainPrompts(torch.zeros(2, 1), momentum=0.75)
    with torch.no_grad():
        stack.shared.copy_(torch.tensor([[8.0], [4.0]]))
    stack.start_client()
    with torch.no_grad():
        stack.shared[0] = 100.0  # a step of the own prompt's optimizer
        stack.shared[1] = -7.0  # weight decay touches the whole tensor; the copies must not follow that
    stack.follow(0)
    assert stack.copies.flatten().tolist() == [100.0, 1.0]  # 0.75 * 0 + 0.25 * 4
    stack.follow(0)
    assert stack.copies.flatten().tolist() == [100.0, 1.75]
    assert [prompt.item() for prompt in stack(0)] == [100.0, 1.75]
    assert [prompt.item() for prompt in stack(None)] == [100.0, -7.0]
    with torch.no_grad():
        stack.shared.copy_(torch.tensor([[1.0], [9.0]]))  # the next broadcast; the copies stay where they were
    stack.start_client()
    assert [prompt.item() for prompt in stack(0)] == [1.0, 1.75]
    stack.follow(0)
    assert [prompt.item() for prompt in stack(0)] == [1.0, 3.5625]  # 0.75 * 1.75 + 0.25 * 9


def test_the_server_has_a_slot_for_each_domain_and_no_more():
    strategy = PerDomainPrompts(torch.zeros(2, 1), momentum=0.75).strategy
    strategy.check([Client(4, 1, 5), Client(2, 0, 5), Client(7, 1, 5)])
    with pytest.raises(UserError, match="2 slots, one a domain, but 3 are needed"):
        strategy.check([Client(4, 2, 5), Client(2, 0, 5)])


@pytest.mark.parametrize("kind", [FedDPT, ADAPT])
def test_parameters_each_way_with_six_domains(kind, vit_b_16):
    module = kind(["star", "circle"], list("abcdef"), vit_b_16)
    (phase,) = check_phases(module)
    client = Client(3, 3, 10)
    server = ServerState.start(module.shared_state())
    module.start_client(RoundContext(0, phase, client))
    assert numel(module.upload_state()) == 16 * 512 + 6 * 768 == 12_800
    assert numel(phase.strategy.broadcast(server, client)) == 6 * 16 * 512 + 6 * 768 == 53_760
