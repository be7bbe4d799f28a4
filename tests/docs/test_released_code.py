"""The page on released code is generated from the cards, which have all its fields."""

import re

from experiments.released_code.table import COMMAND, DOCS, FIELDS, PAGE, fields, page
from tests.helpers.configs import METHODS

SECTIONS = {card.stem: fields(card.read_text(encoding="utf-8")) for card in DOCS.glob("methods/*.md")}
REPOSITORY = r"not recorded|\[([\w.-]+/[\w.-]+)\]\(https://github\.com/\1\)"
COMMIT = r"not recorded|[0-9a-f]{40}"


def test_the_page_is_generated_from_the_cards():
    assert PAGE.read_text(encoding="utf-8") == page(), f"{PAGE} is older than a card: run `{COMMAND}`"


def test_a_field_may_have_several_lines():
    card = "# A\n\n## Released code\n\n* Licence: MIT\n* Agrees: Losses: all,\n  to 1e-5.\n\n## Cost\n\n* None: no.\n"
    assert fields(card) == {"Licence": "MIT", "Agrees": "Losses: all, to 1e-5."}
    assert fields("# A\n\n## Pitfalls\n") == {}


def test_a_card_names_repository_commit_and_licence():
    for card, record in SECTIONS.items():
        if record:
            assert tuple(record) in (FIELDS, FIELDS[:-1]), card  # the last field is optional
            repositories, commits, licences = (record[field].split(", ") for field in FIELDS[:3])
            assert all(re.fullmatch(REPOSITORY, repository) for repository in repositories), card
            assert all(re.fullmatch(COMMIT, commit) for commit in commits), card
            assert len(repositories) == len(commits) == len(licences), card


def test_each_config_of_released_settings_is_named():
    released = {name for name in METHODS if name.endswith("_released")}
    assert released == set(re.findall(r"`methods/(\w+_released)`", page()))
