"""The result of a table in one sentence."""

import pytest

from fedvlp.tools.compare.printing import describe_result
from fedvlp.tools.compare.tables import tables
from tests.helpers.records import make_record


@pytest.mark.parametrize(
    ("results", "sentence"),
    [
        (
            {"PLAN": (45.0, 46.0), "TRIP": (51.0, 53.0)},
            "trip has the highest result, 52.0 ± 1.4 % mean accuracy on held-out domains (1 of 4) over 2 seeds: "
            "6.5 points above plan and 12.0 points above zero-shot CLIP.",
        ),
        # The deviations are 1.41 and 0.71, together 2.12; the lead is 2.
        (
            {"PLAN": (50.0, 49.0), "TRIP": (50.5, 52.5)},
            "plan (within the deviations over seeds, so not a clear difference)",
        ),
        (
            {"PLAN": (47.0,), "TRIP": (47.0,)},
            "over one seed: equal to trip and 7.0 points above zero-shot CLIP; a single seed does not show",
        ),
        (
            {"TRIP": (38.0, 37.0)},
            "No trained method is above zero-shot CLIP, which has 40.0 % mean accuracy on held-out domains (1 of 4). "
            "The best trained method, trip, is 2.5 points behind.",
        ),
    ],
    ids=["clear", "deviations", "one seed", "not beaten"],
)
def test_the_lead_is_described_with_its_uncertainty(results, sentence):
    runs = [
        make_record(value, seed=seed, method=method)
        for method, values in results.items()
        for seed, value in enumerate(values)
    ]
    (table,) = tables(runs)
    assert sentence in describe_result(table)
