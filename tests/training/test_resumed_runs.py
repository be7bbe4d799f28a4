"""A run interrupted within a round and resumed equals an uninterrupted run, for every kind of state."""

import pytest

from fedvlp.callbacks import Checkpoints, MetricsFile, Privacy
from fedvlp.core.aggregation.privacy import DPFedAvg
from fedvlp.core.aggregation.robust import NormClipping, TrimmedMean
from fedvlp.core.aggregation.server_optimizers import FedAdam
from fedvlp.training.add_ons.fed_dg_ga import FedDGGA
from fedvlp.training.add_ons.fed_dyn import FedDyn
from fedvlp.training.add_ons.fed_nova import FedNova
from fedvlp.training.add_ons.fed_prox import FedProx
from fedvlp.training.add_ons.moon import MOON
from fedvlp.training.add_ons.scaffold import Scaffold
from tests.helpers.assertions import assert_same_run
from tests.helpers.interruptions import Interrupted
from tests.helpers.toy_federation import PersonalBias, Points, federation, make_callback

ALL_CLIENTS = {"cohort_size": None, "rounds": 4}
CASES = {
    "optimizers and aggregators": {
        "reset_optimizer": False,
        "epochs": 0.5,
        "aggregation": NormClipping(0.1, FedAdam(inner=TrimmedMean(0.34))),
        **ALL_CLIENTS,
    },
    "noise at clients": {"aggregation": DPFedAvg(0.5, 0.1, noise_at="client"), **ALL_CLIENTS},
    "limit of noise": {"aggregation": FedAdam(inner=DPFedAvg(0.5, 0.1, quantile=0.5)), **ALL_CLIENTS},
    "Scaffold": {"add_ons": Scaffold(), "personal_on_disk": True},
    "FedDyn and FedNova": {"add_ons": [FedDyn(0.3), FedNova()]},
    "FedDGGA, MOON and FedProx": {"add_ons": [FedDGGA(0.6), MOON(2.0), FedProx(0.1)], "personal_on_disk": True},
}


@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_equals_an_uninterrupted_run(tmp_path, name):
    """Two phases upload the same tensor, and not all clients take part in each round."""

    def make(folder):
        callbacks = [Privacy(), Checkpoints(), MetricsFile()]
        options = {"rounds": 3, "cohort_size": 2, "seed": 5, **CASES[name]}
        return federation(tmp_path, name=folder, callbacks=callbacks, **options)

    def stop(federation, *_):
        if federation.run_state.server.round == 1:
            raise Interrupted

    whole = make("whole")
    whole.fit(PersonalBias(), Points())
    broken = make("broken")
    broken.add_callback(make_callback(on_phase_end=stop))
    with pytest.raises(Interrupted):
        broken.fit(PersonalBias(), Points())
    resumed = make("broken")
    resumed.fit(PersonalBias(), Points(), ckpt_path="last")
    assert_same_run(resumed.run_state, whole.run_state)
    memory = {**whole.run_state.server.memory, **whole.run_state.optimizer_states}
    assert memory or name == "noise at clients"
    assert ("privacy/epsilon" in whole.run_state.history[-1]) == ("noise" in name)
