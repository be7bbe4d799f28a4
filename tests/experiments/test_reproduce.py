"""The recipes: they can be parsed, have the papers' settings, and match their README and costs."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

from experiments.reproduce import cost, table
from experiments.reproduce.cost import Tower, costs, work_of
from experiments.reproduce.recipe import FOLDER, HERE, PRINTED, load_recipe
from fedvlp import PromptFL
from fedvlp.catalog.description import normalise_name
from fedvlp.commands.cli import main
from fedvlp.tools.compare.papers import main_tables
from tests.helpers.counting import count_operations

SETTINGS = {  # optimizer, learning rate, batch, rounds
    "trip": ("AdamW", 4e-4, 16, 15),
    "trip_lite": ("AdamW", 4e-4, 16, 15),
    "plan": ("SGD", 0.0015, 32, 20),
    "fed_dpt": ("AdamW", 5e-4, 32, 200),
    "adapt": ("AdamW", 5e-4, 32, 200),
    "diprompt": ("Adam", 5e-4, 16, 100),
}


READ = ("trip_domain_net", "plan_pacs", "fed_dpt_pacs", "fed_dpt_domain_net_30_clients", "diprompt_pacs")
"""One recipe of each kind, because parsing all would take a minute."""


@pytest.fixture(scope="module")
def recipes():
    """Load these recipes by name."""
    return {name: load_recipe(FOLDER / f"{name}.yaml") for name in READ}


def test_every_recipe_and_main_table_is_assigned():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(PRINTED)
    placed = [name for names in PRINTED.values() for name in names]
    assert set(placed) == {f"{table.paper} {table.table}" for table in main_tables()}


@pytest.mark.parametrize("name", READ)
def test_a_recipe_has_its_papers_settings(recipes, name):
    recipe = recipes[name]
    checked = 0
    for label, config in recipe.configs.items():
        assert config.data.init_args.root == "/data"
        assert config.data.init_args.class_names == "plain"
        if label in SETTINGS:
            optimizer = config.model.init_args.optimizer
            own = (optimizer.class_path.rpartition(".")[2], optimizer.init_args.lr)
            assert (*own, config.data.init_args.batch_size, config.trainer.rounds) == SETTINGS[label]
            checked += 1
    assert checked
    first = recipe.printed[0]
    assert {config.data.init_args.shots for config in recipe.configs.values()} == {
        None if first.shots == "full" else int(first.shots)
    }
    assert (recipe.plan.held_out == "none") == (first.protocol == "all_seen")
    clips = {getattr(c.model.init_args.clip, "name", c.model.init_args.clip) for c in recipe.configs.values()}
    assert clips == {"RN50" if first.paper == "diprompt" else "ViT-B-16"}
    (clients,) = {row.clients for row in first.rows if row.method in ("PromptFL", "DiPrompT")}
    sources = len(recipe.data.domains) - len(recipe.held_out[0])
    federated = [config for config in recipe.configs.values() if not cost.is_pooled(config)]
    assert {cost._clients(config, sources) for config in federated} == {int(clients)}


QUOTED = {"I2ADR", "PCL", "Fishr", "ITL-NET", "VAUE"}
"""Centralised image classifiers that DiPrompT's paper quotes and fedvlp does not implement."""


@pytest.mark.parametrize("name", READ)
def test_a_recipe_has_every_row_of_its_tables(recipes, name):
    recipe = recipes[name]
    ours = {normalise_name(table.name_in_papers(config)) for config in recipe.configs.values()}
    for printed in recipe.printed:
        assert {normalise_name(row.method) for row in printed.rows if row.method not in QUOTED} <= ours


@pytest.mark.parametrize("name", READ)
def test_a_recipe_is_a_sweep_of_three_seeds(recipes, name):
    recipe = recipes[name]
    assert recipe.plan.seeds == (0, 1, 2)
    assert {found.runs for found in costs(recipe)} == {3 * len(recipe.held_out)}
    assert f"--file experiments/reproduce/recipes/{name}.yaml" in recipe.path.read_text("utf-8")


def test_a_recipe_runs_on_a_folder(recipes, tmp_path, capsys):
    description = recipes["fed_dpt_pacs"].data
    for domain in description.domains:
        for name in description.class_names:
            (tmp_path / domain / name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / domain / name / "1.png")
    file = recipes["fed_dpt_pacs"].path
    assert main(["sweep", "--file", str(file), "--dry_run", "--", f"--data.root={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert out.count(": fedvlp fit ") == sum(found.runs for found in costs(recipes["fed_dpt_pacs"])) == 24
    assert "Why numbers may differ" in out


def test_the_readme_matches_the_command(recipes):
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    for recipe in recipes.values():
        parts = [table.overview([recipe]).splitlines()[-1]]
        parts += [table.expected(recipe, printed) for printed in recipe.printed]
        for part in parts:
            assert part in readme, "run `python -m experiments.reproduce.table --readme`"


def test_estimated_operations_equal_counted_operations(clip):
    visual = clip.model.visual
    patch = visual.conv1.kernel_size[0]
    width = visual.conv1.out_channels
    tokens = len(visual.positional_embedding)
    start = 2 * (tokens - 1) * 3 * patch**2 * width
    tower = Tower(width, len(visual.transformer.resblocks), tokens, start)
    images = torch.zeros(3, 3, *visual.image_size, requires_grad=True)  # otherwise a fused kernel is not counted
    projection = 2 * width * clip.embed_dim
    assert count_operations(lambda: clip.encode_image(images)) == 3 * (tower.operations(tokens) + projection)


def test_a_backward_pass_costs_as_much_as_a_forward_pass(clip):
    module = PromptFL(["circle", "square", "star"], clip)
    batch = ({"features": torch.randn(4, clip.embed_dim)}, torch.tensor([0, 1, 2, 0]))
    with torch.no_grad():
        forward = count_operations(lambda: module.training_step(batch, 0))
    both = count_operations(lambda: module.training_step(batch, 0).backward())
    assert both / forward == pytest.approx(work_of("PromptFL", 3, {}).batch_texts, rel=0.15)


def test_cost_grows_with_rounds_and_seeds(recipes):
    recipe = recipes["plan_pacs"]
    before = {found.label: found for found in costs(recipe)}
    plan = before["plan"]
    assert before["zero_shot"].training == before["zero_shot"].evaluation == 0
    twice = {found.label: found for found in costs(replace(recipe, plan=replace(recipe.plan, seeds=tuple(range(6)))))}[
        "plan"
    ]
    assert (twice.training, twice.evaluation, twice.encoding) == (2 * plan.training, 2 * plan.evaluation, plan.encoding)
    (config,) = [config for label, config in recipe.configs.items() if label == "plan"]
    longer = config.clone()
    longer.trainer.rounds *= 3
    (found,) = costs(replace(recipe, configs={"plan": longer}))
    assert found.training == pytest.approx(3 * plan.training)


def test_training_images_of_plan_by_hand(recipes):
    """PACS has 9,991 images; each is in three of four runs, where four fifths of it train; PLAN passes 5 times."""
    (found,) = [found for found in costs(recipes["plan_pacs"]) if found.label == "plan"]
    passes = 3 * 20 * 5 * 3 * 0.8 * 9_991  # seeds, rounds, passes, runs
    image = 12 * 205 * (24 * 768**2 + 4 * 205 * 768) + 2 * 196 * 768 * 768
    assert found.training == pytest.approx(passes * image, rel=0.01)  # the rest is texts


def test_the_command_announces_its_computation(recipes, monkeypatch, capsys):
    monkeypatch.setattr(cost, "load_recipe", lambda file: recipes[file.stem])
    cost.main([str(FOLDER / "diprompt_pacs.yaml"), "--rate", "20"])
    out = capsys.readouterr().out
    assert out.startswith("computed, not measured, for 20 x 10^12")
    assert "120 runs" in out
