"""What stays on a site is deleted once no server can ask for it any more."""

import torch

from fedvlp.runs.client_store import StatesOnDisk
from fedvlp.sites.site_store import ROUNDS_KEPT, SiteStore


def keep(store, round):
    name = store.keep(round, 2, {"bias": torch.full((3,), float(round))}, {})[0]
    store.flush()
    return name


def test_old_files_go_but_those_that_are_referred_to(tmp_path):
    store = SiteStore(tmp_path)
    names = [keep(store, round) for round in range(ROUNDS_KEPT + 4)]
    last = len(names) - 1
    store.remove_old(last, [names[1], ""])
    assert sorted(path.name for path in store.folder.iterdir()) == sorted([names[1], *names[last - ROUNDS_KEPT :]])
    store.remove_old(last, [names[-1]])
    assert StatesOnDisk(store.folder, "personal", {2: names[1]})[2]["bias"].tolist() == [1.0, 1.0, 1.0]


def test_files_of_a_site_that_was_started_anew_are_others(tmp_path):
    first = keep(SiteStore(tmp_path), 4)
    second = keep(SiteStore(tmp_path), 4)
    assert first != second
    assert (tmp_path / "clients" / first).is_file()
