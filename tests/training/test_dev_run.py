"""A run that only tries everything: short, and nothing of it stays."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback
from lightning.pytorch.loggers import CSVLogger

from fedvlp.core.aggregation import TrimmedMean
from fedvlp.training.callback import FederationCallback
from fedvlp.training.dev_run import FirstBatch, with_short_splits
from fedvlp.utils.errors import UserError
from tests.helpers.toy_federation import Linear, PersonalBias, Points, federation


class Steps(FederationCallback):
    def __init__(self):
        self.steps = []
        self.folder = None

    def on_client_start(self, federation, phase, client, steps):
        self.steps.append(steps)
        self.folder = federation.folder


def test_one_round_of_one_step_leaves_nothing(tmp_path, capsys):
    steps = Steps()
    stopping = EarlyStopping("nothing of the kind")
    logger = CSVLogger(tmp_path / "logs")
    run = federation(tmp_path, rounds=9, epochs=3, fast_dev_run=True, callbacks=[steps], logger=logger, patience=1)
    run.fit(PersonalBias(), Points(clients=2))
    assert steps.steps == [1] * 4  # two phases
    assert len(run.run_state.history) == run.rounds == 1
    assert run.folder is None
    assert not steps.folder.exists()
    assert not list(tmp_path.iterdir())
    printed = capsys.readouterr().out
    assert "1 step of each client, 1 batch of each split; no accuracy means anything, nothing is kept" in printed
    assert "run folder" not in printed
    with pytest.raises(UserError, match="which no round measures"):
        federation(tmp_path, fast_dev_run=True, callbacks=[stopping]).fit(Linear(), Points())


def test_rules_are_tried_and_nothing_is_gone_on_from(tmp_path):
    asked = LambdaCallback(on_fit_end=lambda trainer, module: None)
    run = federation(tmp_path, fast_dev_run=True, aggregation=TrimmedMean(0.25), callbacks=asked)
    run.fit(Linear(), Points(clients=4))
    with pytest.raises(UserError, match=r"begins anew and keeps nothing. Leave ckpt_path out"):
        run.fit(Linear(), Points(clients=4), ckpt_path="last")
    assert federation(tmp_path, fast_dev_run=True, rounds=0).fit(Linear(), Points()).round == 0


def test_each_split_has_one_batch_and_the_data_stay_whole():
    data = Points()
    whole = [replace(split, loader=3 * split.loader) for split in data.evaluation_splits()]
    data.evaluation_splits = lambda: whole
    short = with_short_splits(data)
    assert [len(split.loader) for split in short.evaluation_splits()] == [1] * 4
    assert [len(list(split.loader)) for split in short.evaluation_splits()] == [1] * 4
    assert [(each.name, each.role, each.domain) for each in short.evaluation_splits()] == [
        (each.name, each.role, each.domain) for each in whole
    ]
    assert {len(split.loader) for split in data.evaluation_splits()} == {3}
    assert short.clients is data.clients
    assert (len(FirstBatch([])), list(FirstBatch([]))) == (0, [])
