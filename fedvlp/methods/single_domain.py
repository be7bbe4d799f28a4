"""Single-domain tuning: each client learns CoOp's prompt on its own data and sends nothing.

Paper: Zhou et al., IJCV 2022 (CoOp's prompt); a common baseline in papers on federated prompt learning.

Symbols: v_k prompt of client k, L x D -> ``prompt``; f(x) image feature -> ``features``.
    p(c | x) = softmax_c(cos(w_c(v_k), f(x)) / tau)    CoOp, Eq. 2; :meth:`.PromptFL.forward`

Deviations:
    * Held-out domains: The papers do not state how they are tested; fedvlp reports the mean over the clients.
"""

from collections.abc import Sequence

from fedvlp.core.phases import Phase
from fedvlp.core.strategies import Local
from fedvlp.methods.promptfl import PromptFL


class SingleDomain(PromptFL):
    """One text prompt per client, without a server; options as in :class:`.PromptFL`."""

    personal = ("prompt",)

    def configure_phases(self) -> Sequence[Phase]:
        """Describe the only phase, which trains and sends nothing."""
        return (Phase("prompt", train=("prompt",), upload=(), strategy=Local()),)
