"""pFedPG: the server generates a visual prompt for each client, which trains it together with a personal head.

Paper: Yang et al., "Efficient Model Personalization in Federated Learning via Client-Specific Prompt Generation",
ICCV 2023; with CLIP as the backbone.

Symbols: P_n, L x W, downloaded prompt -> ``prompt``; P'_n trained prompt -> ``local_prompt``; H_n, C x d -> ``head``;
phi = (P_base, d_n, W^Q, W^K, W^V, W^O) -> ``generator``; alpha -> ``server_lr``; gamma, the optimizer's learning rate.
    P_n = softmax(Q K^T / sqrt(l_k)) V W^O, Q = d_n W^Q, K = P_base W^K, V = P_base W^V    :class:`.PromptGenerator`
    cross-entropy of H_n f(x; P_n) trains P_n and H_n, Eqs. 1, 2                           :meth:`PFedPG.forward`
    phi <- phi + alpha sum_n (dP_n / dphi)^T (P'_n - P_n), Eqs. 5, 6                       :class:`.PromptGeneration`

Deviations:
    * Server step (Eqs. 5, 6): The paper descends P'_n - P_n, which leads away from P'_n; fedvlp moves towards P'_n.
    * Generator: The paper states neither the number of tokens of d_n, nor the generator's start and width; fedvlp uses
      L tokens, their width, and the start explained in :class:`.PromptGenerator`.
    * Head: The paper's ViT has no text tower; fedvlp's head reads f(x) at length 1, and starts as CLIP's text features
      over tau, which is zero-shot CLIP. With ``trains_head: false``, it is not trained.
    * Held-out domains: The mean descriptor's prompt and the text head classify them.
    * Evaluation: fedvlp evaluates a client with P'_n, because its head was trained with P'_n.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.func import functional_call

from fedvlp.clip import CLIP, CLIPSpec, PromptedImageEncoder, ZeroShotClassifier
from fedvlp.core.module import HeldOutEvaluation
from fedvlp.core.phases import Phase, RoundContext
from fedvlp.core.protocols import Inputs
from fedvlp.core.slots import Slots
from fedvlp.core.state import Client, ClientUpdate, ServerState, State, detached, select
from fedvlp.core.strategies import Strategy
from fedvlp.methods.prompts import PromptLearner
from fedvlp.utils.ranges import Names, PositiveFloat, PositiveInt, Templates


class PFedPG(PromptLearner):
    """A generator of each client's initial visual prompt, from which the client trains its own prompt and head.

    Args:
        trains_head: Whether each client trains its own head; otherwise all classify by CLIP's text features.
        templates: Number of CLIP's templates averaged for the text features, from which heads start, in [1, 80].
        prompt_length: Number of learned vectors L of a prompt.
        server_lr: Learning rate alpha of the server's generator.
        held_out_evaluation: Classifier for held-out domains: the ``shared`` prompt of the mean descriptor with the text
            features, the ``mean`` probabilities of all clients' models, or ``each`` client's model in turn.
    """

    needs_images = True

    def __init__(  # noqa: PLR0913  (the paper's options)
        self,
        class_names: Names,
        num_clients: PositiveInt,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        trains_head: bool = True,
        templates: Templates = 1,
        prompt_length: PositiveInt = 10,
        server_lr: PositiveFloat = 0.001,
        held_out_evaluation: HeldOutEvaluation = "shared",
        optimizer: OptimizerCallable = lambda parameters: torch.optim.SGD(parameters, lr=0.25, weight_decay=0.001),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.held_out_evaluation = held_out_evaluation
        self.personal = ("local_prompt", "head") if trains_head else ("local_prompt",)
        self.visual = PromptedImageEncoder(self.clip)
        self.written = ZeroShotClassifier(self.clip, class_names, templates)
        self.generator = PromptGenerator(num_clients, prompt_length, self.clip.image_width)
        self.server = PromptGeneration(self.generator, server_lr, Slots("client", num_clients))
        start = self.generator(None)  # [L, W]
        # Two copies: the server compares the generated prompt with the trained one.
        self.prompt = nn.Parameter(start.clone(), requires_grad=False)  # as downloaded
        self.local_prompt = nn.Parameter(start.clone())
        head = self.clip.logit_scale * F.normalize(self.written.text_features, dim=-1)
        self.head = nn.Parameter(head.clone(), requires_grad=trains_head)  # [C, d]

    def configure_phases(self) -> Sequence[Phase]:
        """Describe the only phase: the trained prompt is uploaded, the head is personal."""
        return (Phase("train", train=self.personal, upload=("prompt",), strategy=self.server, deploy=("prompt",)),)

    def shared_state(self) -> State:
        """Collect the mean descriptor's prompt and the generator, which never leaves the server."""
        return super().shared_state() | detached(select(self.state_dict(), ("generator",)))

    def initial_personal_state(self, start: State) -> State:
        """Create the state of a client that never took part: no local prompt."""
        return start | {"local_prompt": torch.zeros_like(start["local_prompt"])}

    @torch.no_grad()
    def start_client(self, context: RoundContext) -> None:
        """Prepare for one client's local training, starting from the downloaded prompt."""
        super().start_client(context)
        self.local_prompt.copy_(self.prompt)

    def upload_state(self) -> State:
        """Upload the client's prompt under the name of the downloaded prompt."""
        return {"prompt": self.local_prompt}

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits of the client's model, or of the shared part if there is no client."""
        images = self.precomputed(inputs)["images"]
        if not self.uses_personal:
            return self.written(self.image_features(images))
        # A client that never took part has no prompt, and uses the server's.
        own = torch.where(self.local_prompt.any(), self.local_prompt, self.prompt)
        features = self.visual.encode(images, own[None])
        return F.normalize(features.float(), dim=-1) @ self.head.float().T

    def image_features(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B d"]:
        """Compute the joint image features under the shared prompt, not normalised, for ``fedvlp explain``."""
        return self.visual.encode(images, self.prompt[None])


class PromptGenerator(nn.Module):
    """Attention with a client's descriptor as query and a common basis as keys and values (Eqs. 3, 4).

    Basis and descriptors start with a standard deviation of 0.5, which the initial maps preserve. With a much smaller
    value, attention would be uniform. All tokens of a prompt, which have no positions, would then remain equal. With a
    larger value, attention would change so fast that the server's steps at its usual rate would overshoot. Prompts,
    basis and each of the K descriptors have length L.
    """

    def __init__(self, num_clients: int, prompt_length: int, width: int) -> None:
        super().__init__()
        self.basis = nn.Parameter(0.5 * torch.randn(prompt_length, width))
        self.descriptors = nn.Parameter(0.5 * torch.randn(num_clients, prompt_length, width))
        maps = (nn.Parameter(nn.init.xavier_uniform_(torch.empty(width, width))) for _ in range(4))
        self.query, self.key, self.value, self.out = maps
        # Only the server trains the generator; clients neither train nor send it.
        self.requires_grad_(False)

    def forward(self, client: int | None) -> Float[Tensor, "L W"]:
        """Compute the prompt of a client, or of the mean descriptor for None."""
        descriptor = self.descriptors.mean(dim=0) if client is None else self.descriptors[client]
        scores = (descriptor @ self.query) @ (self.basis @ self.key).mT / self.query.shape[1] ** 0.5  # [L, L]
        return scores.softmax(dim=-1) @ (self.basis @ self.value) @ self.out


@dataclass(frozen=True)
class PromptGeneration(Strategy):
    """Strategy that sends each client its generated prompt, and moves the generator towards the trained prompts.

    The server's ``generator.*`` are the generator's parameters phi. Its ``prompt`` belongs to the mean descriptor, and
    only this prompt is deployed. Clients download their own prompt under this name, and upload it after training.

    ``generator`` computes prompts from given parameters, ``learning_rate`` is alpha, and ``clients`` raises an error if
    there are more clients than descriptors.
    """

    generator: PromptGenerator
    learning_rate: float
    clients: Slots

    @torch.no_grad()
    def broadcast(self, server: ServerState, client: Client) -> State:
        """Generate the client's prompt P_n."""
        return {"prompt": self._prompt(server.shared, client.id)}

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Update phi <- phi + alpha sum_n (dP_n / dphi)^T (P'_n - P_n) (Eqs. 5, 6)."""
        if not updates:
            return server
        # The step is a vector-Jacobian product that moves generated prompts towards trained prompts.
        phi = {name: value.clone().requires_grad_() for name, value in select(server.shared, ("generator",)).items()}
        with torch.enable_grad():
            sent = torch.stack([self._prompt(phi, update.client.id) for update in updates])  # [clients, L, W]
        moves = torch.stack([update.state["prompt"] for update in updates]) - sent.detach()
        steps = torch.autograd.grad(sent, list(phi.values()), grad_outputs=moves)
        after = {name: phi[name].detach() + self.learning_rate * step for name, step in zip(phi, steps, strict=True)}
        with torch.no_grad():
            after["prompt"] = self._prompt(after, None)
        return server.updated(after)

    def check(self, clients: Sequence[Client]) -> None:
        """Raise UserError if descriptors are missing."""
        self.clients.check(clients)

    def _prompt(self, state: State, client: int | None) -> Float[Tensor, "L W"]:
        phi = {name.removeprefix("generator."): value for name, value in select(state, ("generator",)).items()}
        return functional_call(self.generator, phi, (client,))
