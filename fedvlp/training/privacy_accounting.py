"""Privacy accounting: the (epsilon, delta) of all rounds of a run, by Renyi differential privacy.

The bound compares federations that differ in all data of one client (``REPLACE_ONE``). It covers all tensors that the
server computes from uploads, in every phase of every round. A skipped client does not change the bound: replacing its
clipped update by zero is one of the changes that the bound allows, and the sum is divided by a fixed number.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

from fedvlp.core.phases import Phase, privacy_guarantees
from fedvlp.utils.errors import UserError


@dataclass(frozen=True)
class PrivacyAccount:
    """Privacy cost of rounds, computed with Google's ``dp_accounting``.

    Sampling a cohort without replacement hides which clients took part (Wang et al., Subsampled Renyi differential
    privacy, 2019). All phases of a round share one cohort and count as one sample. With local noise the server knows
    the cohort, so sampling adds no privacy. ``noise_multipliers`` has one value for each reduction of uploads in a
    round; :class:`.PrivacyGuarantee` describes ``delta``, ``repeats`` and ``is_local``.
    """

    noise_multipliers: tuple[float, ...]
    num_clients: int
    cohort_size: int
    delta: float
    repeats: bool
    is_local: bool = False

    def epsilon(self, rounds: int) -> float:
        """Compute the bound epsilon after a number of rounds; infinity without noise."""
        if rounds == 0:
            return 0.0
        if min(self.noise_multipliers) == 0:
            return math.inf
        from dp_accounting.rdp import compute_epsilon

        orders, divergences = self._round
        return float(compute_epsilon(orders, rounds * divergences, self.delta)[0])

    def describe(self, rounds: int) -> str:
        """Describe the guarantee after a number of rounds in one line."""
        warning = " (the noise repeats with the seed: no privacy if the seed is known)" if self.repeats else ""
        spent = f"epsilon {self.epsilon(rounds):.4g}, delta {self.delta:g} after {rounds} rounds"
        covered = f"for all data of any one of {self.num_clients} clients"
        if self.is_local:
            covered += ", also from the server"
        return f"privacy of tensors, not of metrics: {spent}, {covered}{warning}"

    @cached_property
    def _round(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """The orders, and the Renyi divergence of one round at each order."""
        import dp_accounting
        from dp_accounting.rdp import RdpAccountant

        # Replacing a client changes the sum by up to twice the clip norm, and an event's noise is relative to that.
        halves = [dp_accounting.GaussianDpEvent(noise / 2) for noise in self.noise_multipliers]
        whole_round = dp_accounting.ComposedDpEvent(halves)
        sampled = dp_accounting.SampledWithoutReplacementDpEvent(self.num_clients, self.cohort_size, whole_round)
        relation = dp_accounting.NeighboringRelation.REPLACE_ONE
        everyone, cohort = (RdpAccountant(neighboring_relation=relation).compose(x) for x in (whole_round, sampled))
        # Sampling never costs privacy, but with few clients its bound is looser than the bound without sampling.
        return everyone.orders, everyone.rdp if self.is_local else np.minimum(everyone.rdp, cohort.rdp)


def privacy_account(
    phases: Sequence[Phase], num_clients: int, cohort_size: int | None, processes: int = 1
) -> PrivacyAccount | None:
    """Make a run's privacy account; None without a private aggregator.

    Raises UserError if uploads get no noise, delta is too large, or processes would draw different noise.
    """
    guarantees = privacy_guarantees(phases)
    if not guarantees:
        return None
    if find_spec("dp_accounting") is None:
        raise UserError('DPFedAvg needs dp-accounting, which is not installed. Run: pip install "fedvlp[privacy]"')
    delta = min(guarantee.delta for guarantee in guarantees)
    if delta * num_clients >= 1:
        raise UserError(
            f"DPFedAvg needs a delta below 1 / {num_clients}, one over the number of clients; got {delta:g}. With a "
            "larger delta, publishing all data of a random client would count as private."
        )
    # A single phase with reproducible noise reveals the whole round.
    repeats = any(guarantee.repeats for guarantee in guarantees)
    is_local = any(guarantee.is_local for guarantee in guarantees)
    if processes > 1 and not (repeats or is_local):
        raise UserError(
            f"DPFedAvg with noise_from system needs one process, but there are {processes}, which would draw different "
            "noise. Use devices=1."
        )
    return PrivacyAccount(
        noise_multipliers=tuple(guarantee.noise_multiplier for guarantee in guarantees),
        num_clients=num_clients,
        cohort_size=min(cohort_size or num_clients, num_clients),
        delta=delta,
        repeats=repeats,
        is_local=is_local,
    )
