from __future__ import annotations

import pytest

from fedvlp.data import FederatedDataModule
from fedvlp.data.without_images import PlaceholderData, PredictionData
from fedvlp.utils.errors import UserError


def test_prediction_data_know_what_a_method_is_built_from():
    data = PredictionData(["cat", "dog"], ["photo", "sketch"])
    assert isinstance(data, FederatedDataModule)
    assert data.class_names == ["cat", "dog"]
    assert data.source_domains == ["photo", "sketch"]
    assert data.num_clients == 2
    assert PredictionData(["cat"], ["photo"], num_clients=5).num_clients == 5
    assert PredictionData(["cat"]).source_domains == []


@pytest.mark.parametrize(
    ("data", "message"),
    [(PredictionData(["cat"]), "only class names here"), (PlaceholderData(), "only numbers here")],
    ids=["prediction", "placeholder"],
)
def test_nothing_can_be_trained_on(data, message):
    with pytest.raises(UserError, match=message):
        data.prepare_data()
