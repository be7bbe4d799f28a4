"""Single-domain tuning: each client learns CoOp's prompt on its own data and sends nothing.

Paper: the prompt is CoOp's (Zhou et al., IJCV 2022); the baseline is that of the federated prompt-learning papers.

Symbols: v_k prompt of client k, L x D -> ``prompt``; f(x) image feature -> ``features``.
    p(c | x) = softmax_c(cos(w_c(v_k), f(x)) / tau)    CoOp, Eq. 2; :meth:`.PromptFL.forward`

Departures:
    * Held-out domains: the papers do not say how they are tested; fedvlp reports the mean over the clients.
"""

from collections.abc import Sequence

from fedvlp.core.phases import Phase
from fedvlp.core.strategies import Local
from fedvlp.methods.promptfl import PromptFL


class SingleDomain(PromptFL):
    """Learns one text prompt for each client, without a server; options as of :class:`.PromptFL`."""

    personal = ("prompt",)

    def configure_phases(self) -> Sequence[Phase]:
        """Return one phase that trains and sends nothing."""
        return (Phase("prompt", train=("prompt",), upload=(), strategy=Local()),)
