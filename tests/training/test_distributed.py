"""Several processes that share the clients: balanced shares, and the same results as one process."""

from functools import partial
from itertools import chain, compress, product

import pytest
import torch
from lightning import Fabric

from fedvlp.core.state import Client, RunState, ServerState
from fedvlp.training.distributed import GlooStrategy, check_same_run, on_every_process
from fedvlp.training.engine import balance_clients
from fedvlp.utils.errors import UserError
from fedvlp.utils.tensor_files import read_tensors, write_tensors
from tests.helpers.assertions import assert_equal, run_metrics, run_tensors
from tests.helpers.forks import exit_code, ranks
from tests.helpers.toy_federation import PersonalBias, Points, federation, file_callbacks


def train_run(folder, **options):
    """Train a federation with personal tensors and stateful optimizers."""
    made = federation(folder, rounds=3, cohort_size=5, reset_optimizer=False, **file_callbacks(), **options)
    made.fit(PersonalBias(), Points(clients=7))
    return made


def train_in_two_processes(folder, on_disk):
    """Train in this process and another, and write the tensors and metrics of the first."""
    run = train_run(folder / "runs", personal_on_disk=on_disk, devices=2, strategy="ddp")
    tensors = run_tensors(run.run_state)
    if run.is_global_zero:
        write_tensors(folder / "two.safetensors", tensors, {"rows": run_metrics(run.run_state)})


def num_examples(clients):
    return sum(client.num_examples for client in clients)


def loads(sizes, processes):
    """Count each process's images, after checking that the shares contain all clients in order."""
    clients = [Client(i, 0, size) for i, size in enumerate(sizes)]
    shares = balance_clients(clients, lambda client: client.num_examples, processes)
    assert sorted(chain(*shares), key=lambda client: client.id) == clients
    for share in shares:
        assert share == sorted(share, key=lambda client: client.id)
    return [num_examples(share) for share in shares]


def test_shares_are_within_four_thirds_of_the_optimum():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        sizes = torch.randint(1, 20, (7,), generator=generator).tolist()
        best = sum(sizes)
        for chosen in product((0, 1), repeat=7):
            first = sum(compress(sizes, chosen))
            best = min(best, max(first, sum(sizes) - first))
        assert max(loads(sizes, 2)) <= 4 / 3 * best


@pytest.mark.every_config
@pytest.mark.parametrize("on_disk", [False, True])
def test_two_processes_equal_one_bit_for_bit(on_disk, tmp_path):
    """With several clients per process, personal tensors and kept optimizers, in memory and on disk."""
    with ranks(partial(train_in_two_processes, tmp_path, on_disk), tmp_path / "output") as processes:
        assert [exit_code(process) for process in processes] == [0, 0]
    expected = train_run(tmp_path / "one").run_state
    found, header = read_tensors(tmp_path / "two.safetensors")
    assert header["rows"] == run_metrics(expected)
    assert_equal(found, run_tensors(expected))


@pytest.fixture
def two_ranks(monkeypatch):
    """Return a function that creates a fabric of two ranks. ``other`` maps this rank's values to the second's."""

    def make(other):
        strategy = GlooStrategy(limit=1.0)
        monkeypatch.setattr(strategy, "gather", lambda value: [value, other(value)])
        fabric = Fabric(accelerator="cpu", devices=1)
        fabric._strategy = strategy
        return fabric

    return make


def test_ranks_of_another_run_are_rejected(two_ranks):
    description = {"model": {"init_args": {}}, "split": "x", "optimizer": {"lr": 0.1}}
    state = RunState(ServerState.start({"prompt": torch.tensor([1.0, 2.0], dtype=torch.bfloat16)}))
    about = (Points(), description, state, "rounds=3")
    check_same_run(two_ranks(str), *about)
    with pytest.raises(UserError, match=r"^Rank 1 and rank 0 have different images, options, checkpoints or versions"):
        check_same_run(two_ranks(lambda fingerprint: fingerprint[::-1]), *about)


def test_an_error_of_one_rank_ends_all_ranks(two_ranks):
    def fail():
        raise UserError("no images")

    assert on_every_process(two_ranks(lambda problem: ""), lambda: 3) == 3
    with pytest.raises(UserError, match=r"^no images$"):
        on_every_process(two_ranks(lambda problem: ""), fail)
    with pytest.raises(UserError, match=r"^no folder \(found by rank 1\)$"):
        on_every_process(two_ranks(lambda problem: "no folder"), lambda: 3)


def test_decisions_combine_the_votes_of_all_processes():
    processes = GlooStrategy(limit=1.0)
    for other in (False, True):
        processes.gather = lambda value, other=other: [value, other]
        assert processes.reduce_boolean_decision(True, all=False) is True
        assert processes.reduce_boolean_decision(True) is other
        assert processes.reduce_boolean_decision(False, all=False) is other
