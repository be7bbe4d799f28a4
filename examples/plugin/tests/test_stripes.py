from fedvlp.testing import check_data
from my_prompts.stripes import Stripes


def test_contract():
    check_data(lambda: Stripes(held_out="blue", cache_dir=None))


def test_domains_classes_and_clients():
    data = Stripes(images_per_class=5, held_out="blue", cache_dir=None)
    data.setup("fit")
    assert data.class_names == ["rows", "columns", "diagonals"]
    assert [client.name for client in data.clients] == ["green", "red"]
    assert sum(len(row["images"]) for row in data.split_table()) == 45
