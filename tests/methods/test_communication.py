"""What crosses the network with ViT-B/16: the numbers of the papers' tables."""

from __future__ import annotations

import pytest
import torch

from fedvlp.callbacks import Communication
from fedvlp.core.phases import RoundContext, check_phases
from fedvlp.core.state import Client, ClientUpdate, ServerState
from fedvlp.methods import TRIP, DiPrompT, PromptFL, SingleDomain, ZeroShotCLIP
from tests.helpers.shapes import unchecked

CLASSES = ["dog", "elephant", "giraffe", "guitar", "horse", "house", "person"]


@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        (lambda clip: TRIP(CLASSES, clip), 65_536),
        (lambda clip: TRIP(CLASSES, clip, num_experts=2, prompt_length=1), 1_024),
        (lambda clip: PromptFL(CLASSES, clip), 8_192),
        (lambda clip: DiPrompT(CLASSES, ["art painting", "cartoon", "photo"], clip), 40_960),
        (lambda clip: DiPrompT(CLASSES, ["art painting", "cartoon", "photo"], clip, upload_query=False), 32_768),
        (lambda clip: SingleDomain(CLASSES, clip), 0),
        (lambda clip: ZeroShotCLIP(CLASSES, clip), 0),
    ],
    ids=["TRIP", "TRIP-Lite", "PromptFL", "DiPrompT", "DiPrompT-own-Q", "single-domain", "zero-shot"],
)
def test_parameters_each_way(vit_b_16, make, parameters):
    module = make(vit_b_16)
    client = Client(0, 0, 10, "photo")
    counter = Communication()
    server = ServerState.start(module.shared_state())
    row: dict[str, int] = {}
    with unchecked():  # the counter needs no federation
        counter.on_round_start(None, (), ())
        for phase in check_phases(module):
            module.start_client(RoundContext(0, phase, client))
            update = ClientUpdate(client, module.upload_state(), 10)
            counter.on_phase_end(None, phase, server, server, [update], lambda client: server.shared)
        counter.on_round_metrics(None, row)
    assert row["upload_parameters"] == row["download_parameters"] == parameters
    assert row["upload_bytes"] == 4 * parameters == row["total_bytes"] // 2


def test_prompts_are_float32(vit_b_16):
    assert {value.dtype for value in TRIP(CLASSES, vit_b_16).shared_state().values()} == {torch.float32}
