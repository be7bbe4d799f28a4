import pytest
import torch
from torch import nn

from fedvlp import (
    ADAPT,
    PLAN,
    TRIP,
    DiPrompT,
    FedMaPLe,
    FedTPG,
    PromptFL,
    PromptLearner,
    ZeroShotCLIP,
)
from fedvlp.clip import PromptedTextEncoder
from fedvlp.tools.explain.methods import text_prompts, token_experts
from fedvlp.tools.explain.pictures import expert_shares

CLASSES = ["cat", "dog", "bird"]
DOMAINS = ["ink", "oil"]


def images_for(clip, count=3):
    return torch.randn(count, 3, clip.image_size, clip.image_size, generator=torch.Generator().manual_seed(3))


class TwoKinds(PromptLearner):
    """Method with two kinds of prompts, three vectors each, and one parameter that is no prompt."""

    def __init__(self, class_names, clip):
        super().__init__(class_names, clip, None)
        width = self.clip.text_width
        self.text = PromptedTextEncoder(self.clip, class_names, prompt_length=3)
        self.common_prompt = nn.Parameter(torch.zeros(3, width))
        self.experts = nn.Parameter(torch.zeros(2, 3, width))
        self.residual = nn.Parameter(torch.zeros(len(class_names), width + 1))

    def forward(self, inputs):
        return self.precomputed(inputs)["features"][:, :2]


def test_prompts_are_parameters_with_the_text_encoders_shape(clip):
    prompts = text_prompts(TwoKinds(CLASSES, clip))
    assert list(prompts) == ["common prompt", "expert 1", "expert 2"]
    assert {tuple(prompt.shape) for prompt in prompts.values()} == {(3, clip.text_width)}
    assert text_prompts(ZeroShotCLIP(CLASSES, clip=clip)) == {}


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda clip: FedTPG(CLASSES, clip), ["prompt"]),
        (lambda clip: FedMaPLe(CLASSES, clip), ["global prompt"]),
        (lambda clip: PLAN(CLASSES, 2, clip), ["global prompt"]),
        (lambda clip: ADAPT(CLASSES, DOMAINS, clip), ["prompt of ink", "prompt of oil"]),
        (lambda clip: DiPrompT(CLASSES, DOMAINS, clip), ["global prompt", "prompt of ink", "prompt of oil"]),
    ],
)
def test_methods_with_several_prompts_name_the_deployed_prompts(clip, make, names):
    prompts = text_prompts(make(clip))
    assert [name for name in prompts if name != "query prompt"] == names
    assert {prompt.shape[-1] for prompt in prompts.values()} == {clip.text_width}


@pytest.mark.parametrize("options", [{"eval_capacity": 1.0}, {"matched_to": "experts"}])
def test_shares_of_tokens_equal_the_routing_weights(clip, options):
    module = TRIP(CLASSES, clip=clip, num_experts=3, prompt_length=2, **options).eval()
    images = images_for(clip)
    experts = token_experts(module, images)
    constants = module.precompute(images)
    weights = module.router(constants, module.expert_features)
    assert experts.shape == (3, clip.num_image_tokens)
    for tokens, image_weights, share_routed in zip(experts, weights, constants["eval_kept"], strict=True):
        assert expert_shares(tokens, 3) == pytest.approx(image_weights.tolist())
        assert (tokens >= 0).float().mean() == pytest.approx(float(share_routed))
    if options.get("matched_to") is None:
        single = token_experts(module, images[1:2])
        assert torch.equal(single[0], experts[1])


def test_learned_routers_show_token_experts_only_for_token_routing(clip):
    images = images_for(clip)
    by_token, by_image = (
        TRIP(CLASSES, clip=clip, num_experts=3, prompt_length=2, routing=routing).eval()
        for routing in ("learned_token", "learned_image")
    )
    tokens = clip.encode_image_tokens(images)[1]
    assert torch.equal(token_experts(by_token, images), by_token.router.linear(tokens).argmax(dim=-1))
    assert token_experts(by_image, images) is None
    assert token_experts(PromptFL(CLASSES, clip=clip), images) is None
