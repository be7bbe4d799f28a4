"""The rule that a federation is given: in every phase, in the description of the run, and after a resume."""

import pytest
import torch

from fedvlp.commands.cli import main
from fedvlp.core.aggregation.robust import CoordinateMedian, NormClipping, TrimmedMean
from fedvlp.core.aggregation.server_optimizers import FedAdam
from fedvlp.core.phases import Phase
from fedvlp.core.strategies import FedAvg
from tests.helpers.assertions import assert_equal, run_tensors
from tests.helpers.interruptions import Interrupted, StopAfter
from tests.helpers.toy_federation import Linear, PersonalBias, Points, federation, file_callbacks


def test_rule_is_used_in_place_of_the_mean(tmp_path):
    class Median(Linear):
        def configure_phases(self):
            return [Phase("train", ("weight",), ("weight",), FedAvg(aggregator=CoordinateMedian()))]

    chosen = federation(tmp_path, aggregation=CoordinateMedian()).fit(Linear(), Points())
    assert torch.equal(chosen.shared["weight"], federation(tmp_path).fit(Median(), Points()).shared["weight"])
    assert not torch.equal(chosen.shared["weight"], federation(tmp_path).fit(Linear(), Points()).shared["weight"])


def test_resumed_run_equals_an_unbroken_one(tmp_path):
    """Two phases train and send the same tensor, so their moments would meet under one name."""
    rule = NormClipping(0.1, FedAdam(inner=TrimmedMean(0.34)))
    whole = federation(tmp_path, name="whole", rounds=4, aggregation=rule, **file_callbacks())
    whole.fit(PersonalBias(), Points())
    moments = [name for name in whole.run_state.server.memory if name.endswith("weight")]
    assert {name.split("/")[0] for name in moments} == {"both", "weight"}
    broken = federation(tmp_path, name="broken", rounds=4, aggregation=rule, **file_callbacks())
    broken.add_callback(StopAfter(2))
    with pytest.raises(Interrupted):
        broken.fit(PersonalBias(), Points())
    again = federation(tmp_path, name="broken", rounds=4, aggregation=rule, **file_callbacks())
    again.fit(PersonalBias(), Points(), ckpt_path="last")
    assert_equal(run_tensors(again.run_state), run_tensors(whole.run_state))


def printed_config(capsys, *options):
    with pytest.raises(SystemExit) as stopped:
        main(["fit", "--config=quickstart", *options, "--print_config"])
    assert stopped.value.code == 0
    return capsys.readouterr().out


def test_chosen_by_short_name_on_the_command_line(capsys):
    text = printed_config(capsys, "--trainer.server.aggregation=TrimmedMean", "--trainer.server.aggregation.share=0.34")
    assert "class_path: fedvlp.TrimmedMean" in text
    assert "share: 0.34" in text
    options = ["--trainer.server.aggregation=NormClipping", "--trainer.server.aggregation.max_norm=2"]
    text = printed_config(
        capsys, *options, "--trainer.server.aggregation.inner=Krum", "--trainer.server.aggregation.inner.byzantine=1"
    )
    assert text.index("fedvlp.NormClipping") < text.index("fedvlp.Krum") < text.index("byzantine: 1")
