"""Fed-DPT and ADAPT but for their losses: prompts, phases, what is sent, and the forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.core.phases import Phase, RoundContext
from fedvlp.core.protocols import Inputs
from fedvlp.core.state import State
from fedvlp.methods._shared.prompt_learner import PromptLearner
from fedvlp.methods.fed_dpt.dual_prompts import Components, DualFeatures, DualPrompts
from fedvlp.utils.ranges import FractionBelowOne, Names, PositiveFloat, PositiveInt


class DualPromptLearner(PromptLearner):
    """Learns a text prompt and an image token for each domain; the loss is a subclass's.

    Args:
        class_names: The classes, in the order of the labels.
        domains: Names of the source domains, in the order of the clients' domains.
        clip: The frozen CLIP: a name, name and weights, or one that was loaded before.
        prompt_length: Number of learned vectors m of a text prompt.
        temperature: Temperature tau_d of the weights over domains, above 0.
        text_momentum: alpha of the text prompts, in [0, 1), or none.
        visual_momentum: The same for image tokens.
        components: Which prompts there are.
        optimizer: Makes the optimizer of a client's local training.
    """

    needs_images = True

    def __init__(  # noqa: PLR0913  (the papers' options)
        self,
        class_names: Names,
        domains: Names,
        clip: CLIPSpec | CLIP | str,
        prompt_length: PositiveInt,
        temperature: PositiveFloat,
        text_momentum: FractionBelowOne | None,
        visual_momentum: FractionBelowOne | None,
        components: Components,
        optimizer: OptimizerCallable,
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.dual = DualPrompts(
            self.clip, class_names, domains, prompt_length, components, temperature, text_momentum, visual_momentum
        )
        self.train_only_personal = self.dual.copies("dual")

    @property
    def domain(self) -> int | None:
        """The domain of the client that trains; None in evaluation, outside a federation, and with several domains."""
        if self.context is None or self.context.client.domain < 0:
            return None
        return self.context.client.domain

    def configure_phases(self) -> Sequence[Phase]:
        """Returns one phase: own text prompt to its slot, image tokens to their mean."""
        return (self.dual.phase("dual"),)

    def start_client(self, context: RoundContext) -> None:
        """Prepares for one client's local training; its copies will follow what was broadcast."""
        super().start_client(context)
        self.dual.start_client()

    def upload_state(self) -> State:
        """Returns the client's own text prompt and the image tokens."""
        if self.domain is None:
            return super().upload_state()
        return self.dual.upload("dual", self.domain)

    def features(self, inputs: Inputs) -> DualFeatures:
        """Returns what both towers say of a batch, as the client that trains has their prompts, or the server."""
        features: DualFeatures = self.dual(self.constants(inputs)["images"], self.domain)
        return features

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Returns the logits cos(f_V, f_T(c)) / tau (Fed-DPT, Eqs. 1, 6; ADAPT, Eq. 5)."""
        return self.features(inputs).logits(self.clip.logit_scale)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Moves the copies of the other domains' prompts (Fed-DPT, Eq. 8; ADAPT, Eq. 6)."""
        self.dual.follow(self.domain)
