"""How much of a client's data a run gives away: the (epsilon, delta) of all its rounds, by Renyi differential privacy.

The bound compares federations that differ in all data of one client (``REPLACE_ONE``), and covers all tensors that the
server makes of uploads, in every phase of every round. A client that is left out changes nothing in it: zero in place
of its clipped update is one of the changes that the bound allows for, and the sum is divided by a fixed number.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedvlp.core.phases import Phase, guarantees
from fedvlp.utils.errors import UserError


@dataclass(frozen=True)
class PrivacyAccount:
    """Counts what rounds cost, by the accountant of Google's ``dp_accounting``.

    A cohort drawn without replacement hides who took part (Wang et al., Subsampled Renyi differential privacy, 2019).
    All phases of a round have the same cohort, so they are drawn together. Of local noise the server knows who took
    part, so the draw hides nobody. ``noise_multipliers`` are of each combination of uploads in a round; the other
    attributes are those of :class:`.PrivacyGuarantee`.
    """

    noise_multipliers: tuple[float, ...]
    num_clients: int
    cohort_size: int
    delta: float
    repeats: bool
    is_local: bool = False

    def epsilon(self, rounds: int) -> float:
        """The bound epsilon after so many rounds; infinity where there is no noise."""
        if rounds == 0:
            return 0.0
        if min(self.noise_multipliers) == 0:
            return math.inf
        from dp_accounting.rdp import compute_epsilon

        orders, divergences = self._round
        return float(compute_epsilon(orders, rounds * divergences, self.delta)[0])

    def describe(self, rounds: int) -> str:
        """The guarantee after so many rounds in one line."""
        warning = " (the noise repeats with the seed: it protects from no one who knows it)" if self.repeats else ""
        spent = f"epsilon {self.epsilon(rounds):.4g}, delta {self.delta:g} after {rounds} rounds"
        covered = f"for all data of any one of {self.num_clients} clients"
        if self.is_local:
            covered += ", from the server too"
        return f"privacy of tensors, not of metrics: {spent}, {covered}{warning}"

    @cached_property
    def _round(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """The orders, and the Renyi divergence of one round at each of them."""
        import dp_accounting
        from dp_accounting.rdp import RdpAccountant

        # Replacing a client changes a sum of clipped updates by up to twice the limit; events ask for noise per change.
        halves = [dp_accounting.GaussianDpEvent(noise / 2) for noise in self.noise_multipliers]
        of_all = dp_accounting.ComposedDpEvent(halves)
        drawn = dp_accounting.SampledWithoutReplacementDpEvent(self.num_clients, self.cohort_size, of_all)
        accountants = []
        for event in (of_all, drawn):
            accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
            accountants.append(accountant.compose(event))
        # Drawing never costs privacy, but with few clients the bound for it is above that without.
        divergences = np.minimum(accountants[0].rdp, accountants[1].rdp)
        return accountants[0].orders, accountants[0].rdp if self.is_local else divergences


def privacy_account(
    phases: Sequence[Phase], num_clients: int, cohort_size: int | None, processes: int = 1
) -> PrivacyAccount | None:
    """Count a run's privacy; None if none of its aggregators gives any.

    Raises UserError if a phase gets past the noise, delta is too large, or each process would draw other noise.
    """
    given = guarantees(phases)
    if not given:
        return None
    try:
        import dp_accounting  # noqa: F401
    except ImportError as error:
        missing = 'DPFedAvg needs dp-accounting, which is not installed. Run: pip install "fedvlp[privacy]"'
        raise UserError(missing) from error
    delta = min(guarantee.delta for guarantee in given)
    if delta * num_clients >= 1:
        raise UserError(
            f"DPFedAvg needs a delta below 1 / {num_clients}, the number of clients; got {delta:g}. An aggregator that "
            "gives away all data of a client drawn at random would be as private."
        )
    # One phase whose noise can be taken off gives the round away.
    repeats = any(guarantee.repeats for guarantee in given)
    is_local = any(guarantee.is_local for guarantee in given)
    if processes > 1 and not (repeats or is_local):
        raise UserError(
            f"DPFedAvg with noise_from system needs one process, but there are {processes}, which would draw different "
            "noise. Use devices=1."
        )
    return PrivacyAccount(
        noise_multipliers=tuple(guarantee.noise_multiplier for guarantee in given),
        num_clients=num_clients,
        cohort_size=min(cohort_size or num_clients, num_clients),
        delta=delta,
        repeats=repeats,
        is_local=is_local,
    )
