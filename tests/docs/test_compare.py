"""The page on comparing methods: its sweep files are valid, and it lists every option of a job."""

import re

import pytest

from fedvlp.tools.sweep.command import SLURM_OPTIONS
from fedvlp.tools.sweep.plan import make_sweep, read_sweep
from tests.helpers.documents import ROOT, Document

PAGE = Document(ROOT / "docs" / "compare.md")
FILES = PAGE.blocks("yaml")


@pytest.mark.parametrize("number", range(len(FILES)))
def test_each_file_is_a_sweep(tmp_path, number):
    file = tmp_path / "sweep.yaml"
    file.write_text(FILES[number], encoding="utf-8")
    assert make_sweep(read_sweep(file)).seeds == (0, 1, 2)


def test_every_option_of_a_job_is_named():
    sentence = PAGE.text.split("Options of the array are ")[1].split("Without")[0]
    assert sorted({*re.findall(r"`(\w+)`", sentence)} - {"sbatch"}) == sorted([*SLURM_OPTIONS, "setup"])
