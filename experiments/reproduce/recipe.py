"""Recipes: sweep files with the printed tables that they reproduce."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvlp.catalog.description import DESCRIPTIONS, Description
from fedvlp.tools.compare.papers import PrintedTable, dataset_key, main_tables
from fedvlp.tools.sweep.methods import parse_methods
from fedvlp.tools.sweep.plan import Sweep, make_sweep, read_sweep

HERE = Path(__file__).parent
FOLDER = HERE / "recipes"
PRINTED = {
    "trip_pacs": ("trip I",),
    "trip_office_home": ("trip II",),
    "trip_vlcs": ("trip III",),
    "trip_domain_net": ("trip IV",),
    "plan_pacs": ("plan II",),
    "plan_office_home": ("plan III",),
    "plan_vlcs": ("plan IV",),
    "plan_domain_net": ("plan V",),
    "fed_dpt_domain_net": ("fed_dpt 1", "adapt 2"),
    "fed_dpt_office_home": ("fed_dpt 2", "adapt 3"),
    "fed_dpt_pacs": ("fed_dpt 2", "adapt 3"),
    "fed_dpt_domain_net_30_clients": ("fed_dpt 7", "adapt 8"),
    "diprompt_pacs": ("diprompt 1",),
    "diprompt_office_home": ("diprompt 1",),
    "diprompt_vlcs": ("diprompt 2",),
}
"""The papers' tables of each recipe, in the displayed order."""


@dataclass(frozen=True)
class Recipe:
    """A sweep that reproduces printed tables.

    Attributes:
        path: The sweep's file.
        plan: Methods, seeds and arguments.
        configs: Parsed configuration of each method, by label.
        note: Reasons why numbers may differ.
        data: Description of the images.
    """

    path: Path
    plan: Sweep
    configs: Mapping[str, Any]
    note: str
    data: Description

    @property
    def name(self) -> str:
        """Name of the file."""
        return self.path.stem

    @property
    def title(self) -> str:
        """First line of the file."""
        return self.path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")

    @property
    def printed(self) -> list[PrintedTable]:
        """The papers' tables."""
        found = main_tables(dataset=dataset_key(self.data.name))
        return [table for table in found if f"{table.paper} {table.table}" in PRINTED[self.name]]

    @property
    def held_out(self) -> tuple[tuple[str, ...], ...]:
        """Domains that are held out together, for all runs of a method and seed."""
        if self.plan.held_out == "none":
            return ((),)
        return tuple((name,) for name in (self.data.domains if self.plan.held_out == "all" else self.plan.held_out))


def load_recipe(path: Path, root: str = "/data") -> Recipe:
    """Read a sweep's file and parse the arguments of its methods, without looking for images.

    Args:
        path: The file.
        root: Value of ``--data.root``.
    """
    content = read_sweep(path)
    plan = make_sweep(content, [f"--data.root={root}"])
    (data,) = [known for known in DESCRIPTIONS if known.config in plan.configs]
    return Recipe(path, plan, parse_methods(plan), content["note"], data)


def all_recipes() -> list[Recipe]:
    """Load all recipes, in the order of ``PRINTED``."""
    return [load_recipe(FOLDER / f"{name}.yaml") for name in PRINTED]
