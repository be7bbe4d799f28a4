"""Print the recipes, the papers' numbers, and the costs as Markdown.

``python -m experiments.reproduce.table --readme`` writes it into this folder's README.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from experiments.reproduce.cost import RATE, Cost, costs, is_pooled
from experiments.reproduce.recipe import HERE, PRINTED, Recipe, all_recipes
from experiments.tables import markdown, write_block
from fedvlp.catalog.description import normalise_name
from fedvlp.tools.compare.papers import BACKBONES, PrintedTable, paper_name, papers
from fedvlp.tools.compare.tables import AVERAGE


def overview(recipes: Sequence[Recipe]) -> str:
    """Make one row per recipe."""
    head = ["recipe", "reproduces", "average of the paper's own method", "runs", "GPU hours, computed"]
    return markdown(head, [_row(recipe) for recipe in recipes], texts=2)


def _row(recipe: Recipe) -> list[str]:
    """Describe a recipe in one row."""
    found = costs(recipe)
    own: list[str] = []
    for table in recipe.printed:
        name = normalise_name(papers()[table.paper]["name"])
        own += [row.numbers[AVERAGE] for row in table.rows if normalise_name(row.method) == name]
    names = "; ".join(table.name for table in recipe.printed)
    runs = sum(cost.runs for cost in found)
    return [f"`{recipe.name}`", f"{names}: {recipe.data.name}", ", ".join(own), f"{runs}", _hours(found)]


def chapter(recipes: Sequence[Recipe]) -> str:
    """Format the chapter of one study's recipes: reasons why numbers may differ, and a section per recipe."""
    first = recipes[0].note.splitlines()[0]
    shared = reasons(recipes[0])
    titles: dict[str, None] = {}
    for recipe in recipes:
        own = reasons(recipe)
        shared = [reason for reason in shared if reason in own]
        titles |= dict.fromkeys(papers()[table.paper]["name"] for table in recipe.printed)
    sections = []
    for recipe in recipes:
        sections.append(section(recipe, [reason for reason in reasons(recipe) if reason not in shared]))
    return "\n\n".join([f"## {' and '.join(titles)}", first, "\n".join(shared), *sections])


def section(recipe: Recipe, own: Sequence[str]) -> str:
    """Format a recipe's command, the printed numbers, its cost, and further reasons why numbers may differ."""
    file = f"experiments/reproduce/recipes/{recipe.name}.yaml"
    wanted = " ".join(dict.fromkeys(table.paper for table in recipe.printed))
    commands = f"fedvlp sweep --file {file} -- --data.root=FOLDER\nfedvlp compare runs/{recipe.name} --papers {wanted}"
    found = costs(recipe)
    each = ", ".join(f"{cost.label} {_hours([cost])}" for cost in found)
    hours = f"Computed, not measured: {_hours(found)} GPU hours ({each})."
    parts = [
        f"### {recipe.title.rstrip('.')}",
        f"```bash\n{commands}\n```",
        *(expected(recipe, table) for table in recipe.printed),
    ]
    return "\n\n".join([*parts, hours, *(["\n".join(own)] if own else [])])


def reasons(recipe: Recipe) -> list[str]:
    """List the reasons why numbers may differ, as items of a Markdown list."""
    return [f"* {reason.rstrip()}" for reason in recipe.note.split("\n* ")[1:]]


def expected(recipe: Recipe, table: PrintedTable) -> str:
    """Format the printed rows of the recipe's methods, and list the paper's other rows."""
    models = {}
    for label, config in recipe.configs.items():
        models[normalise_name(name_in_papers(config))] = label
    ours = [row for row in table.rows if normalise_name(row.method) in models]
    usual = ours[-1].backbone  # of the paper's own method
    lines = []
    for row in ours:
        numbers = [row.numbers[name] for name in (*table.domains, AVERAGE)]
        name = row.method if row.backbone == usual else f"{row.method} ({BACKBONES[row.backbone]})"
        lines.append([name, f"`{models[normalise_name(row.method)]}`", *numbers])
    left = ", ".join(dict.fromkeys(row.method for row in table.rows if row not in ours))
    rest = "" if all(row.backbone == usual for row in ours) else ", if no other backbone is named"
    text = markdown([f"printed in {table.name}", "model", *table.domains, AVERAGE], lines, texts=2)
    others = f" The paper's other rows: {left}." if left else ""
    return f"{text}\n\nAccuracy in % with {BACKBONES[usual]}{rest}.{others}"


def name_in_papers(config: Any) -> str:
    """Find the papers' name of a recipe's method with a config; empty if there is none."""
    method: str = config.model.class_path.rpartition(".")[2]
    if is_pooled(config):
        return method
    aggregation = config.trainer.server.aggregation
    add_on = config.trainer.local.add_ons
    training: dict[str, Any] = {
        "aggregation": {"class": aggregation.class_path.rpartition(".")[2]} if aggregation else None,
        "add_ons": [{"class": add_on.class_path.rpartition(".")[2]}] if add_on else [],
    }
    return paper_name(method, config.model.init_args.as_dict(), training)


def _hours(found: Sequence[Cost]) -> str:
    """Format GPU hours with two significant digits.

    >>> _hours([Cost("a", 1, 0.0, 36e15 * 123.4, 0.0)]), _hours([Cost("a", 1, 0.0, 36e15 * 0.0123, 0.0)])
    ('120', '0.01')
    """
    hours = sum(cost.hours() for cost in found)
    if hours >= 10:
        return f"{float(f'{hours:.2g}'):,.0f}"
    return f"{hours:.1f}" if hours >= 1 else f"{hours:.2f}"


def text(recipes: Sequence[Recipe]) -> str:
    """Format the overview and a chapter per study."""
    chapters = [list(of) for _, of in groupby(recipes, key=lambda recipe: recipe.printed[0].paper)]
    note = f"GPU hours are computed for {RATE:g} x 10^12 operations a second, see `cost.py`; nothing was measured."
    return "\n\n".join([overview(recipes), note, *(chapter(of) for of in chapters)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readme", action="store_true", help=f"write the {len(PRINTED)} recipes into the README")
    options = parser.parse_args(arguments)
    found = text(all_recipes())
    sys.stdout.write(f"{found}\n")
    if options.readme:
        write_block(HERE / "README.md", "recipes", found)


if __name__ == "__main__":
    main()
