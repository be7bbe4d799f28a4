"""The list of add-ons that a config can name."""

from pathlib import Path

from fedvlp.training import add_ons


def test_each_file_of_the_folder_has_a_public_add_on():
    files = {path.stem for path in Path(add_ons.__file__).parent.glob("*.py")} - {"__init__", "base"}
    assert {kind.__module__.rpartition(".")[2] for kind in add_ons.PUBLIC.values()} == files
