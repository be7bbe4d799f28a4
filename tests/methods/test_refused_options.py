"""Constructors of methods reject invalid options and unsuitable towers."""

import pytest

from fedvlp import (
    ADAPT,
    CCST,
    DPFPL,
    ELCFS,
    PLAN,
    SWAD,
    TRIP,
    CoCoOp,
    DiPrompT,
    FedMaPLe,
    FedMVP,
    FedPR,
    FedTPG,
    FineTuning,
    PFedMoAP,
    ProDA,
    PromptFL,
    StableFDG,
)
from fedvlp.utils.errors import UserError
from tests.helpers.shapes import unchecked

GIVEN = {
    "ADAPT": {"domains": ["ink", "paint"]},
    "CCST": {"num_clients": 2},
    "DiPrompT": {"domains": ["ink", "paint"]},
    "ELCFS": {"num_clients": 2},
    "PFedMoAP": {"num_clients": 2},
    "PLAN": {"num_clients": 2},
    "StableFDG": {"num_clients": 2},
}


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (ADAPT, {"components": "visual"}, "domain_weight of 0"),
        (CCST, {"stage": 99}, "stages"),
        (CoCoOp, {"reduction": 4096}, "reduction in .1, "),
        (DiPrompT, {"prompt_length": 3}, "prompt_length of at least 4"),
        (DiPrompT, {"without": ("global_prompt", "domain_prompts")}, "not both"),
        (DiPrompT, {"without": ("lmse",)}, "parts of DiPrompT"),
        (DPFPL, {"rank": 17}, "rank of at most 16"),
        (ELCFS, {"frequency": 32}, "no frequency"),
        (FedMaPLe, {"depth": 9}, r"depth in \[1, 3\]"),
        (FedMVP, {"heads": 3}, "divide 128"),
        (FedPR, {"depth": 9}, r"depth in \[1, 4\]"),
        (FedTPG, {"heads": 7}, "heads that divide"),
        (FineTuning, {"towers": "both", "head": "linear"}, "uses no text features"),
        (PFedMoAP, {"heads": 3}, "heads that divide"),
        (PLAN, {"depth": 9}, r"depth in \[1, 3\]"),
        (PLAN, {"reduction": 4096}, "reduction in"),
        (ProDA, {"num_prompts": 6}, "a multiple of 4; got 6"),
        (ProDA, {"prompts_per_step": 33}, r"prompts_per_step in \[1, 32\]; got 33"),
        (StableFDG, {"stage": 4}, "Lower stage"),
        (SWAD, {"start_patience": 3, "end_patience": 2}, "end_patience"),
        (TRIP, {"key_init": "gaussian"}, "orthogonal, uniform, normal or binary"),
        (TRIP, {"routing": "patch"}, "got 'patch'"),
        (TRIP, {"matched_to": "experts", "cluster_start": "keys"}, "has no keys for cluster_start"),
    ],
)
def test_invalid_options_are_rejected(clip, kind, options, message):
    with unchecked(), pytest.raises(UserError, match=message):
        kind(**{"class_names": ["cat", "dog"], "clip": clip, **GIVEN.get(kind.__name__, {}), **options})


def test_options_must_be_keywords(clip):
    with pytest.raises(TypeError, match="positional arguments"), unchecked():
        PromptFL(["cat", "dog"], clip, 16)
