"""A run resumes only with the same options of local training, server and clients, except for options without effect."""

from dataclasses import replace

import pytest

from fedvlp.core.aggregation.robust import NormClipping, TrimmedMean
from fedvlp.runs.descriptions import describe_run
from fedvlp.tools.attacks import SignFlip
from fedvlp.training.add_ons.fed_dg_ga import FedDGGA
from fedvlp.training.add_ons.fed_dyn import FedDyn
from fedvlp.training.add_ons.fed_prox import FedProx
from fedvlp.training.local_training import CosineDecay, ExponentialDecay, LocalTraining
from fedvlp.training.options import Clients, RunOptions, Server
from fedvlp.utils.digests import from_jsonable, to_jsonable
from tests.helpers.options import different, options_of, other_value, record
from tests.helpers.toy_federation import Linear, Points

OPTIONS = RunOptions(3, 0, "32-true")
GROUPS = {"local": LocalTraining, "server": Server, "clients": Clients}
VALUES = {
    "steps": 5,
    "schedule": ExponentialDecay(0.75),
    "add_ons": FedDyn(0.375),
    "gradient_clip_val": 1.5,
    "aggregation": TrimmedMean(0.375),
    "max_update_norm": 3.5,
    "cohort_size": 2,
    "on_failure": "retry",
    "attack": SignFlip(clients=2, seed=5, scale=0.625),
}
CHANGE_NOTHING = {"min_clients", "on_failure", "personal_on_disk"}


def describe(options):
    """Describe a run with these options."""
    return describe_run(Linear(), Points(), (), options.describe())


@pytest.mark.parametrize(("group", "name"), [(group, name) for group in GROUPS for name in options_of(GROUPS[group])])
def test_a_run_resumes_only_with_the_same_option(group, name):
    value = other_value(GROUPS[group], name, VALUES)
    one, other = (describe(each) for each in (OPTIONS, replace(OPTIONS, **{group: GROUPS[group](**{name: value})})))
    assert different(one, other) == (set() if name in CHANGE_NOTHING else {f"training.{group}.{name}"})
    assert (record(one).settings == record(other).settings) == (name in CHANGE_NOTHING)


def test_rows_of_a_table_differ_in_precision_but_not_in_seed():
    base, seed, precision = (
        describe(replace(OPTIONS, **each)) for each in ({}, {"seed": 4}, {"precision": "16-mixed"})
    )
    assert different(base, seed) == {"training.seed"}
    assert different(base, precision) == {"training.precision"}
    assert record(base).settings == record(seed).settings != record(precision).settings


@pytest.mark.parametrize("local", [{"schedule": CosineDecay()}, {"add_ons": [FedDGGA()]}])
def test_the_number_of_rounds_may_change_unless_training_depends_on_it(local):
    longer = [replace(OPTIONS, rounds=9, local=LocalTraining(**each)) for each in ({}, local)]
    shorter = [replace(options, rounds=3) for options in longer]
    found = [different(describe(one), describe(other)) for one, other in zip(shorter, longer, strict=True)]
    assert found == [set(), {"training.rounds"}]


def test_nested_classes_are_described_and_recreated():
    nested = NormClipping(max_norm=2.5, inner=TrimmedMean(0.25))
    described = to_jsonable(nested)
    assert described == {"class": "NormClipping", "max_norm": 2.5, "inner": {"class": "TrimmedMean", "share": 0.25}}
    assert from_jsonable(described, {"NormClipping": NormClipping, "TrimmedMean": TrimmedMean}) == nested
    with pytest.raises(KeyError):
        from_jsonable(described, {"NormClipping": NormClipping})


def test_one_add_on_and_a_list_of_it_are_the_same():
    one, listed = (replace(OPTIONS, local=LocalTraining(add_ons=each)) for each in (FedProx(0.1), [FedProx(0.1)]))
    assert one.describe() == listed.describe()
