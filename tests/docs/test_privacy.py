"""The pages on privacy and the secure sum: tables and names match the methods and classes."""

import dataclasses
import re

import pytest
import torch

import fedvlp
from docs._scripts import privacy
from docs._scripts.privacy import PAGE, sum_suffices, updates_of, used
from fedvlp.core.aggregation.base import Aggregator
from fedvlp.core.phases import Phase
from fedvlp.core.slots import IndicatorMean, Slots
from fedvlp.core.state import ServerState
from fedvlp.core.strategies import FedAvg, MovingAverage, ema_share
from fedvlp.tools.audit import KINDS, InversionOptions, MembershipOptions
from fedvlp.utils.config_files import configs_folder
from tests.helpers import configs
from tests.helpers.documents import ROOT, Document, names

TEXT = PAGE.read_text(encoding="utf-8")
SECURE_SUM = Document(ROOT / "docs" / "secure_sum.md")
ROWS = Document(PAGE).rows(privacy.BEGIN)


@pytest.mark.parametrize("config", sorted(configs.KINDS))
def test_the_rows_of_a_config_match_its_method(clip, config):
    """Only configs that differ; `python -m docs._scripts.privacy --check` covers all."""
    path = configs_folder() / "methods" / f"{config}.yaml"
    made = [privacy.CENTRAL_ROW] if privacy.is_centralised(path) else privacy.rows_of(privacy.method(path, clip))
    written = [tuple(cells) for named, *cells in ROWS if f"`{config}`" in named]
    assert sorted(made) == sorted(written), f"docs/privacy.md is older than the code: run `{privacy.COMMAND}`"


def test_every_config_has_a_row():
    assert {name for row in ROWS for name in names(row[0])} == set(configs.METHODS)
    assert {len(row) for row in ROWS} == {len(privacy.HEAD)}


def test_a_table_is_written_between_the_marks():
    assert privacy.with_table(f"a {privacy.BEGIN} old {privacy.END} b", "| 1 |") == (
        f"a {privacy.BEGIN}\n\n| 1 |\n\n{privacy.END} b"
    )


@pytest.mark.parametrize(
    ("strategy", "stacks", "uses", "is_sum"),
    [
        (FedAvg(), False, ["images"], True),
        (FedAvg("uniform"), False, [], True),
        (FedAvg(aggregator=fedvlp.CoordinateMedian()), False, [], False),
        (MovingAverage(FedAvg("uniform"), ema_share(0.5), ("p",)), False, [], True),
        (Slots("client"), True, ["client"], False),
        (Slots("domain"), True, ["images", "domain"], False),
        (IndicatorMean(), False, ["images"], False),
    ],
    ids=["mean", "uniform", "median", "average", "clients", "domains", "indicator"],
)
def test_the_server_needs_the_properties_that_change_its_state(strategy, stacks, uses, is_sum):
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(4, 3, generator=generator)
    phase = Phase("train", ("p",), ("p",), strategy)
    server = ServerState.start({"p": shared})
    uploads = [{"p": shared[index].clone() if stacks else shared.clone()} for index in range(4)]
    assert used(phase, server, uploads) == uses
    assert sum_suffices(phase, server, uploads) == is_sum
    assert [update.num_examples for update in updates_of(uploads)] == [30] * 4


def test_linear_aggregators_are_listed():
    section = " ".join(SECURE_SUM.text.partition("## Supported methods and aggregators")[2].split())
    linear, others = re.match(r"(.*?which apply it\.)(.*?need each upload)", section).groups()
    arguments = {
        "Krum": {"byzantine": 1},
        "MultiKrum": {"byzantine": 1, "selected": 2},
        "NormClipping": {"max_norm": 1.0},
    }
    arguments["DPFedAvg"] = {"clip_norm": 1.0, "noise_multiplier": 1.0}
    classes = {name: getattr(fedvlp, name) for name in fedvlp.__all__ if name[0].isupper() and name != "Aggregator"}
    names = {name for name, kind in classes.items() if isinstance(kind, type) and issubclass(kind, Aggregator)}
    is_linear = {name: classes[name](**arguments.get(name, {})).is_linear for name in names}
    assert set(re.findall(r"`(\w+)`", linear)) & names == {name for name in names if is_linear[name]}
    assert set(re.findall(r"`(\w+)`", others)) & names == {name for name in names if not is_linear[name]}


def test_options_in_the_text_exist():
    lines = {
        line.split("`")[1]: line for line in TEXT.splitlines() if line.startswith(("| `inv", "| `mem", "| `words"))
    }
    assert set(lines) == set(KINDS)
    for kind, options in (("inversion", InversionOptions), ("membership", MembershipOptions)):
        named = re.findall(r"`(?:--\w+\.)?(\w+)`", lines[kind].split("|")[3])
        assert named == [field.name for field in dataclasses.fields(options)]
    assert [words[1] for words in Document(PAGE).commands("fedvlp")] == ["fit", "audit", "fit"]
