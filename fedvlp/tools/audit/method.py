"""A method as it is audited, and what is asked of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedvlp.core.module import FederatedModule
from fedvlp.core.state import Client, State
from fedvlp.tools.audit.images import RunImages
from fedvlp.tools.audit.inversion import InversionOptions
from fedvlp.tools.audit.membership import MembershipOptions
from fedvlp.utils.errors import UserError


@dataclass(frozen=True)
class AuditRequest:
    """What is to be measured.

    Attributes:
        kinds: names of measures; None for all that the method allows.
        inversion: how gradients are inverted.
        membership: how members are told from others.
        seed: of all that is drawn.
    """

    kinds: Sequence[str] | None = None
    inversion: InversionOptions = field(default_factory=InversionOptions)
    membership: MembershipOptions = field(default_factory=MembershipOptions)
    seed: int = 0


@dataclass(frozen=True)
class AuditedMethod:
    """A method and the run that it is of.

    Attributes:
        module: the method, with the deployed tensors.
        deployed: these tensors.
        personal: what each client keeps, by the client's id.
        images: of its run; None where there are none.
        is_trained: whether the tensors come from a trained file.
    """

    module: FederatedModule
    deployed: State
    personal: Mapping[int, State]
    images: RunImages | None
    is_trained: bool

    @property
    def name(self) -> str:
        """The method's name."""
        return type(self.module).__name__

    @property
    def clip(self) -> Any:
        """The frozen CLIP."""
        return self.module.clip

    @property
    def class_names(self) -> list[str]:
        """All classes."""
        return list(self.module.hparams["class_names"])

    def state_of(self, client: Client) -> Mapping[str, Tensor]:
        """Returns what a client's images are classified with: the server's tensors, and its own where it has some."""
        own = self.personal.get(client.id, {}) if self.module.personal else {}
        return {**self.deployed, **own}

    def require_images(self) -> RunImages:
        """Returns the images of the run.

        Raises:
            UserError: if there are none.
        """
        if self.images is None:
            raise UserError("There are no images of clients. Pass a run folder with its config.yaml, or --data.")
        return self.images
