import pytest

from fedvlp.catalog.description import DATA_SETS
from fedvlp.data.benchmarks.manifest import read_manifest
from fedvlp.utils.errors import UserError
from tests.helpers.benchmark_trees import domain_net, kfold, write_list

DOMAIN_NET_126 = DATA_SETS["DomainNet126"]
PACS = DATA_SETS["PACS"]


@pytest.fixture
def pacs(tmp_path):
    return kfold(tmp_path)


@pytest.fixture
def train(pacs):
    """The list of training sketches."""
    return pacs / "kfold" / "sketch_train_kfold.txt"


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("sketch/dog/0.png", "sketch/dog/77.png", r"lists 1 images that are not in sketch: sketch/dog/77.png \(line 1"),
        ("sketch/dog/0.png", "photo/dog/0.png", "not in sketch: photo/dog/0.png"),
        ("sketch/dog/0.png 1", "sketch/dog/0.png", "Expected 'domain/class/image label' in line 1"),
        ("sketch/dog/0.png 1", "sketch/dog/4.png 1", r"sketch/dog/4.png \(sketch_train_kfold.txt, sketch_crossval_k"),
    ],
    ids=["missing", "domain", "no label", "leak"],
)
def test_lists_that_contradict(pacs, train, old, new, said):
    edit(train, old, new)
    with pytest.raises(UserError, match=said) as error:
        read_manifest(pacs, PACS)
    assert "sketch_train_kfold.txt" in str(error.value)


def test_at_most_ten_names_and_lists_of_all_domains(pacs, train):
    train.write_text("".join(f"sketch/dog/x{number}.png 1\n" for number in range(25)), encoding="utf-8")
    with pytest.raises(UserError, match=r"lists 25 images .*x9.png \(line 10\) ... and 15 more"):
        read_manifest(pacs, PACS)
    train.unlink()
    with pytest.raises(UserError, match="found none for sketch"):
        read_manifest(pacs, PACS)


def test_labels_may_begin_anywhere_and_lines_may_be_empty(pacs, train):
    lines = train.read_text(encoding="utf-8").splitlines()
    names = [line.split()[0] for line in lines]
    write_list(train, names, first_label=40)
    train.write_text(train.read_text(encoding="utf-8").replace("/", "\\") + "\n\n", encoding="utf-8")
    assert read_manifest(pacs, PACS).split == "train/crossval"


def test_images_in_no_list_are_skipped(pacs, train):
    for ending in ("train", "test"):
        path = pacs / "kfold" / f"sketch_{ending}_kfold.txt"
        edit(path, "sketch/dog/0.png 1\n", "")
    found = read_manifest(pacs, PACS)
    assert found.notes == ["skipped 1 images that are in no list: sketch/dog/0.png"]


def test_lines_of_other_classes_of_a_larger_data_set_are_passed_over(tmp_path):
    domain_net("DomainNet")(tmp_path)
    found = read_manifest(tmp_path, DOMAIN_NET_126)
    assert {image.class_name for image in found.files["real"]} == {"The_Eiffel_Tower", "see_saw"}
    assert set(found.files) == {"clipart", "painting", "real", "sketch"}
