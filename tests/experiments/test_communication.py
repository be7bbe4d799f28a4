"""The study of communication: the comparison with printed numbers, and its table."""

from fractions import Fraction

import pytest

from experiments.communication.claims import CLAIMS, printed_number, prints_as
from experiments.communication.table import README, cells, counted, networks, verdict
from fedvlp.utils.config_files import find_config
from tests.helpers.documents import Document


@pytest.mark.parametrize(
    ("number", "printed", "same"),
    [
        (65_536, "0.065M", True),  # truncated
        (65_536, "0.066M", True),  # rounded
        (65_536, "0.067M", False),
        (1_024, "0.001M", True),
        (2_000, "0.001M", False),
        (16_896, "16.9k", True),
        (12_800, "16.9k", False),
        (78_336, "0.08M", True),
        (8_192, "625x of A", False),  # ratios are compared in percent
    ],
)
def test_a_number_matches_its_truncated_or_rounded_form(number, printed, same):
    assert prints_as(number, printed) == same


def test_a_number_may_be_a_multiple_of_another():
    assert printed_number("4x of A", {"A": 102}) == Fraction(51, 2)
    with pytest.raises(ValueError, match="a number such as"):
        printed_number("many", {})


def test_sizes_of_whole_networks():
    assert networks() == {"ViT-B/16": 85_798_656, "ResNet-50": 25_557_032}


def row(up, down):
    return {
        "upload_parameters": up,
        "download_parameters": down,
        "upload_bytes": 4 * up,
        "once_parameters": 0,
        "all_clients": 3,
    }


def test_every_differing_claim_has_a_reason():
    """A claim has a reason exactly if its row in the README shows another number."""
    table = Document(README).rows("<!-- communication -->")
    assert [line[0] for line in table] == [claim.title for claim in CLAIMS]
    for claim, line in zip(CLAIMS, table, strict=True):
        assert bool(claim.printed) == bool(claim.source)
        assert bool(claim.reason) == (line[-1] not in ("the same", "no number in the papers"))
        ours = [int(number.replace(",", "")) for number in line[2:6]]
        result = {**row(*ours[:2]), "once_parameters": ours[3], "all_clients": int(line[1].split(", ")[-1].split()[0])}
        assert cells(claim, result, networks()) == line
        assert find_config(claim.config)


def test_the_verdict_follows_the_larger_difference():
    claim = next(claim for claim in CLAIMS if claim.title == "TRIP")
    assert verdict(claim, row(65_536, 65_536), {}) == "the same"
    assert verdict(claim, row(65_536, 130_000), {}).startswith("both +100.0 %")


def test_the_table_has_the_numbers_of_the_command():
    claim = next(claim for claim in CLAIMS if claim.title == "TRIP-Lite")
    assert f"| {' | '.join(cells(claim, counted(claim), {}))} |" in README.read_text(encoding="utf-8")
