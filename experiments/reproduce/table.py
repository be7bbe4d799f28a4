"""Prints what the recipes are, what the papers print, and what they cost, as Markdown.

``python -m experiments.reproduce.table --readme`` writes it into this folder's README.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import groupby

from experiments.reproduce.cost import RATE, Cost, costs
from experiments.reproduce.recipe import HERE, PRINTED, Recipe, all_recipes
from experiments.tables import markdown, write_block
from fedvlp.results.compare_papers import paper_name
from fedvlp.results.papers import AVERAGE, BACKBONES, PrintedTable, papers, plain_name


def overview(recipes: Sequence[Recipe]) -> str:
    """Returns one row for each recipe."""
    head = ["recipe", "reproduces", "average of the paper's own method", "runs", "GPU hours, computed"]
    return markdown(head, [_row(recipe) for recipe in recipes], texts=2)


def _row(recipe: Recipe) -> list[str]:
    """Returns what a recipe is in a line."""
    found = costs(recipe)
    own = [
        row.numbers[AVERAGE]
        for table in recipe.printed
        for row in table.rows
        if plain_name(row.method) == plain_name(papers()[table.paper]["name"])
    ]
    names = "; ".join(table.name for table in recipe.printed)
    runs = sum(cost.runs for cost in found)
    return [f"`{recipe.name}`", f"{names}: {recipe.data.name}", ", ".join(own), f"{runs}", _hours(found)]


def chapter(recipes: Sequence[Recipe]) -> str:
    """Returns all that is to be said of the recipes of one study: why numbers may differ, and a section for each."""
    first, *_ = recipes[0].note.splitlines()
    shared = [reason for reason in reasons(recipes[0]) if all(reason in reasons(recipe) for recipe in recipes)]
    titles = list(dict.fromkeys(papers()[table.paper]["name"] for recipe in recipes for table in recipe.printed))
    sections = [section(recipe, [own for own in reasons(recipe) if own not in shared]) for recipe in recipes]
    return "\n\n".join([f"## {' and '.join(titles)}", first, "\n".join(shared), *sections])


def section(recipe: Recipe, own: Sequence[str]) -> str:
    """Returns a recipe's command, the printed numbers, its cost, and further reasons why numbers may differ."""
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
    """Returns why numbers may differ, one item of a Markdown list each."""
    return [f"* {reason.rstrip()}" for reason in recipe.note.split("\n* ")[1:]]


def expected(recipe: Recipe, table: PrintedTable) -> str:
    """Returns the printed rows of the methods that a recipe runs, and which others the paper has."""
    models = {
        plain_name(paper_name(config.model.class_path.rpartition(".")[2], config.model.init_args.as_dict())): label
        for label, config in recipe.configs.items()
    }
    ours = [row for row in table.rows if plain_name(row.method) in models and row.backbone.startswith("clip")]
    lines = [
        [row.method, f"`{models[plain_name(row.method)]}`", *(row.numbers[name] for name in (*table.domains, AVERAGE))]
        for row in ours
    ]
    left = ", ".join(dict.fromkeys(row.method for row in table.rows if row not in ours))
    backbones = " and ".join(dict.fromkeys(BACKBONES[row.backbone] for row in ours))
    text = markdown([f"printed in {table.name}", "model", *table.domains, AVERAGE], lines, texts=2)
    return f"{text}\n\nAccuracy in % with {backbones}. The paper's other rows: {left}."


def _hours(found: Sequence[Cost]) -> str:
    """Returns GPU hours with two digits that count.

    >>> _hours([Cost("a", 1, 0.0, 36e15 * 123.4, 0.0)]), _hours([Cost("a", 1, 0.0, 36e15 * 0.0123, 0.0)])
    ('120', '0.01')
    """
    hours = sum(cost.hours() for cost in found)
    return f"{float(f'{hours:.2g}'):,.0f}" if hours >= 10 else f"{hours:.1f}" if hours >= 1 else f"{hours:.2f}"


def text(recipes: Sequence[Recipe]) -> str:
    """Returns the overview and a chapter for each study."""
    chapters = [list(of) for _, of in groupby(recipes, key=lambda recipe: recipe.printed[0].paper)]
    said = f"GPU hours are computed for {RATE:g} x 10^12 operations a second, see `cost.py`; nothing was measured."
    return "\n\n".join([overview(recipes), said, *(chapter(of) for of in chapters)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readme", action="store_true", help=f"write the {len(PRINTED)} recipes into the README too")
    options = parser.parse_args(arguments)
    found = text(all_recipes())
    sys.stdout.write(f"{found}\n")
    if options.readme:
        write_block(HERE / "README.md", "recipes", found)


if __name__ == "__main__":
    main()
