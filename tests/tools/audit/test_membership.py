"""The area under the ROC curve against counted pairs, and the comparison within domains."""

import numpy as np
import pytest

from fedvlp.tools.audit.membership import MembershipOptions, Stratum, interval, stratified_auc

PHOTO = Stratum(np.array([0.3, 1.2, 0.7, 0.7, 2.5]), np.array([0.7, 0.9, 0.3, 3.1]))
SKETCH = Stratum(np.array([5.0, 4.1]), np.array([4.4, 6.0, 5.0]))


def pairs(stratum):
    """Score each pair: 1 if the member wins, 0.5 for a tie."""
    return [1.0 if m < o else 0.5 if m == o else 0.0 for m in stratum.members for o in stratum.others]


@pytest.mark.parametrize("strata", [[PHOTO], [SKETCH], [PHOTO, SKETCH]])
def test_area_is_the_mean_score_of_pairs(strata):
    counted = [score for stratum in strata for score in pairs(stratum)]
    assert stratified_auc(strata) == pytest.approx(sum(counted) / len(counted))


def test_a_shift_between_domains_is_not_mistaken_for_membership():
    generator = np.random.default_rng(0)
    easy = Stratum(generator.normal(0, 1, 300), generator.normal(0, 1, 30))
    hard = Stratum(generator.normal(9, 1, 30), generator.normal(9, 1, 300))
    joined = Stratum(np.concatenate([easy.members, hard.members]), np.concatenate([easy.others, hard.others]))
    assert stratified_auc([joined]) > 0.85, "the easy domain has most members"
    assert stratified_auc([easy, hard]) == pytest.approx(0.5, abs=0.07)


def test_the_interval_contains_the_area_and_grows_with_confidence():
    strata = [PHOTO, SKETCH]
    found = {
        confidence: interval(strata, MembershipOptions(resamples=300, confidence=confidence), np.random.default_rng(7))
        for confidence in (0.5, 0.95)
    }
    (low, high), (lowest, highest) = found.values()
    assert lowest < low < stratified_auc(strata) < high < highest
