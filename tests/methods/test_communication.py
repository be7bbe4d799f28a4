"""What crosses the network with ViT-B/16: the numbers of the papers' tables."""

from __future__ import annotations

import pytest
import torch

from fedvlp import (
    ADAPT,
    BPL,
    DPFPL,
    IVLP,
    PLAN,
    PLOT,
    TRIP,
    CoCoOp,
    DiPrompT,
    FedAPT,
    FedCLIP,
    FedDEAP,
    FedDPT,
    FedLoRA,
    FedMaPLe,
    FedMedCLIP,
    FedOTP,
    FedPHA,
    FedPR,
    FedPromptSRC,
    FedTPG,
    FineTuning,
    KgCoOp,
    PFedMMA,
    PFedMoAP,
    ProDA,
    PromptFL,
    PromptFolio,
    SingleDomain,
    ZeroShotCLIP,
)
from fedvlp.core.module import check_phases
from fedvlp.core.phases import RoundContext
from fedvlp.core.state import Client, ServerState, numel, select

CLASSES = ["dog", "elephant", "giraffe", "guitar", "horse", "house", "person"]
DOMAINS = ["art painting", "cartoon", "photo"]
TOWER = 86_192_640


@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        (lambda clip: TRIP(CLASSES, clip), 65_536),
        (lambda clip: TRIP(CLASSES, clip, num_experts=2, prompt_length=1), 1_024),
        (lambda clip: PromptFL(CLASSES, clip), 8_192),
        (lambda clip: KgCoOp(CLASSES, clip), 2_048),
        (lambda clip: BPL(CLASSES, clip), 3_072),
        (lambda clip: BPL(CLASSES, clip, conditional=True), 659_456),
        (lambda clip: CoCoOp(CLASSES, clip), 35_360),
        (lambda clip: DPFPL(CLASSES, clip), 8_192),
        (lambda clip: DiPrompT(CLASSES, DOMAINS, clip), 40_960),
        (lambda clip: DiPrompT(CLASSES, DOMAINS, clip, upload_query=False), 32_768),
        (lambda clip: FedAPT(CLASSES, DOMAINS, clip), 7 * 16 * 512 + 512 * 3),
        (lambda clip: FedCLIP(CLASSES, clip), 525_312),
        (lambda clip: FedDEAP(CLASSES, DOMAINS, clip), 583_168),
        (lambda clip: FedLoRA(CLASSES, clip), 184_320),
        (lambda clip: FedLoRA(CLASSES, clip, rank=0), 0),
        (lambda clip: FedMaPLe(CLASSES, clip), 3_555_072),
        (lambda clip: FedMaPLe(CLASSES, clip, prompt_length=8, depth=12), 4_776_960),
        (lambda clip: FedMedCLIP(CLASSES, clip), 526_336),
        (lambda clip: FedOTP(CLASSES, clip), 8_192),
        (lambda clip: FedPHA(CLASSES, clip), 8_192),
        (lambda clip: FedPR(CLASSES, clip), 73_728),
        (lambda clip: FedPromptSRC(CLASSES, clip), 46_080),
        (lambda clip: FedTPG(CLASSES, clip), 4_206_080),
        (lambda clip: PFedMMA(CLASSES, clip), 8_448),
        (lambda clip: ProDA(CLASSES, clip), 262_144),
        (lambda clip: PLOT(CLASSES, clip), 32_768),
        (lambda clip: PromptFolio(CLASSES, clip), 4_096),
        (lambda clip: IVLP(CLASSES, clip), 20_480),
        (lambda clip: IVLP(CLASSES, clip, prompt_length=2, depth=9), 23_040),
        (lambda clip: SingleDomain(CLASSES, clip), 0),
        (lambda clip: ZeroShotCLIP(CLASSES, clip), 0),
        (lambda clip: FineTuning(CLASSES, clip), TOWER),
        (lambda clip: FineTuning(CLASSES, clip, head="linear"), TOWER + 7 * 513),
        (lambda clip: FineTuning(CLASSES, clip, towers="both"), 149_620_737),
    ],
)
def test_parameters_each_way(vit_b_16, make, parameters):
    module = make(vit_b_16)
    client = Client(0, 0, 10, "photo")
    upload = 0
    download = 0
    for phase in check_phases(module):
        upload += numel(select(module.communicable_state(), phase.upload))
        download += numel(phase.broadcast(ServerState.start(module.shared_state()), client))
    assert upload == download == parameters


@pytest.mark.parametrize("kind", [FedDPT, ADAPT])
def test_parameters_of_fed_dpt_with_six_domains(kind, vit_b_16):
    """A client sends its own text prompt and all image tokens, and gets all of both."""
    module = kind(CLASSES, list("abcdef"), vit_b_16)
    (phase,) = check_phases(module)
    client = Client(3, 3, 10)
    server = ServerState.start(module.shared_state())
    module.start_client(RoundContext(0, phase, client))
    assert numel(module.upload_state()) == 16 * 512 + 6 * 768 == 12_800
    assert numel(phase.broadcast(server, client)) == 6 * 16 * 512 + 6 * 768 == 53_760


@pytest.mark.parametrize(
    ("options", "upload", "download"),
    [
        ({}, 5_161_728, 5_530_368),
        ({"aggregator": "attention_over_clients"}, 81_901_568, 82_270_208),
        ({"aggregator": "attention_over_clients", "aggregate_text": False}, 56_690_688, 57_059_328),
    ],
)
def test_parameters_of_each_stage_of_plan(vit_b_16, options, upload, download):
    module = PLAN(CLASSES, 3, vit_b_16, **options)
    server = ServerState.start(module.shared_state())
    client = Client(0, 0, 10)
    counts = []
    for phase in check_phases(module):
        module.start_client(RoundContext(0, phase, client))
        counts.append((numel(module.upload_state()), numel(phase.broadcast(server, client))))
    assert counts == [(122_880, 122_880), (upload, download)]


def test_parameters_that_pfed_moap_lends(vit_b_16):
    module = PFedMoAP(CLASSES, 12, vit_b_16)
    (phase,) = check_phases(module)
    server = ServerState.start(module.shared_state())
    assert numel(phase.broadcast(server, Client(0, 0, 5))) == 8_192 + 9 * 8_192
    assert sum(value.numel() for value in module.gating.parameters()) == 66_048


def test_prompts_are_float32(vit_b_16):
    assert {value.dtype for value in TRIP(CLASSES, vit_b_16).shared_state().values()} == {torch.float32}
