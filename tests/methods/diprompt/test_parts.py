"""DiPrompT's parts: what its prompts start from, which options are refused, and a Q-prompt that is not sent."""

from __future__ import annotations

import pytest
import torch

from fedvlp.methods import DiPrompT
from fedvlp.training.fit_loop import FitLoop
from fedvlp.utils.errors import UserError
from tests.helpers.shapes import unchecked

CLASSES = ["red circle", "star", "big square"]
DOMAINS = ["cartoon", "photo", "sketch"]


def test_query_prompt_starts_from_words(clip):
    module = DiPrompT(CLASSES, DOMAINS, clip)
    ids = torch.tensor(clip.tokenize(["a photo of a"])[0][1:-1])
    assert torch.equal(module.query_prompt[:4], clip.text.embed(ids))
    assert module.query_prompt[4:].abs().max() < 0.2
    assert module.domain_prompts.shape == (3, 16, clip.text_width)
    assert not torch.equal(module.domain_prompts[0], module.domain_prompts[1])


@pytest.mark.parametrize(
    "options",
    [
        {"domains": []},
        {"domain_weight": -1.0},
        {"beta": 0.0},
        {"prompt_length": 3},
        {"without": ("global_prompt", "domain_prompts")},
        {"without": ("lmse",)},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(clip, options):
    with unchecked(), pytest.raises(UserError):
        DiPrompT(CLASSES, clip=clip, **{"domains": DOMAINS, **options})


def test_query_that_is_not_sent_stays_on_the_client_and_resumes(build):
    def run(*arguments):
        made = build("diprompt", "--model.upload_query=false", "--trainer.rounds=3", *arguments)
        return made, made.trainer

    whole, trainer = run("--trainer.name=whole")
    trainer.fit(whole.model, whole.datamodule)
    broken, stopped = run("--trainer.name=broken")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FitLoop, "_has_plateaued", lambda loop: loop.run.run_state.server.round == 1)
        stopped.fit(broken.model, broken.datamodule)
    again, resumed = run("--trainer.name=broken")
    resumed.fit(again.model, again.datamodule, ckpt_path="last")
    assert set(trainer.run_state.server.shared) == {"global_prompt", "domain_prompts"}
    kept = [state["query_prompt"] for state in trainer.run_state.personal.values()]
    assert len(kept) == 2
    assert not torch.equal(*kept)
    for client, state in resumed.run_state.personal.items():
        assert torch.equal(state["query_prompt"], trainer.run_state.personal[client]["query_prompt"])
    assert resumed.run_state.history[-1]["validation"] == trainer.run_state.history[-1]["validation"]
