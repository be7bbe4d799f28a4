import pytest

from fedvlp.data import FederatedDataModule
from fedvlp.data.without_images import PlaceholderData
from fedvlp.utils.errors import UserError


def test_names_are_enough_to_build_a_method():
    data = PlaceholderData(["cat", "dog"], ["photo", "sketch"])
    assert isinstance(data, FederatedDataModule)
    assert data.class_names == ["cat", "dog"]
    assert data.source_domains == ["photo", "sketch"]
    assert data.num_clients == 2
    assert PlaceholderData(["cat"], ["photo"], num_clients=5).num_clients == 5
    assert PlaceholderData(["cat"], []).source_domains == []


def test_placeholders_are_numbers_of_clients_and_classes():
    data = PlaceholderData(classes=5, domains=2, num_clients=3)
    assert len(data.class_names) == 5
    assert [client.domain for client in data.clients] == [0, 1, 0]
    with pytest.raises(UserError, match="only names and numbers"):
        data.prepare_data()
