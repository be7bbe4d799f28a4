"""Processes that train different clients: fair shares, and the same results as one process."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import chain, compress, product

import torch

from fedvlp.core.state import Client
from fedvlp.training.cohort import balance_clients
from fedvlp.utils.tensor_files import read_tensors
from tests.helpers.assertions import assert_equal, run_metrics, run_tensors
from tests.helpers.processes import finished

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def num_examples(clients):
    return sum(client.num_examples for client in clients)


def loads(sizes, processes):
    """How many images each process has; together they have all clients, each in the clients' order."""
    clients = [Client(i, 0, size) for i, size in enumerate(sizes)]
    shares = balance_clients(clients, lambda client: client.num_examples, processes)
    assert sorted(chain(*shares), key=lambda client: client.id) == clients
    for share in shares:
        assert share == sorted(share, key=lambda client: client.id)
    return [num_examples(share) for share in shares]


def test_longest_first():
    assert loads([5, 1, 1, 1, 1, 1], 2) == [5, 5]
    assert loads([3, 3, 2, 2, 2], 2) == [7, 5]  # 6 and 6 would be best; never more than 4/3 of it
    assert loads([4], 3) == [4, 0, 0]
    assert loads([2, 2, 2], 1) == [6]


def test_shares_are_within_four_thirds_of_the_best():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        sizes = torch.randint(1, 20, (7,), generator=generator).tolist()
        best = sum(sizes)
        for chosen in product((0, 1), repeat=7):
            first = sum(compress(sizes, chosen))
            best = min(best, max(first, sum(sizes) - first))
        assert max(loads(sizes, 2)) <= 4 / 3 * best


def test_two_processes_of_torchrun_equal_one_bit_for_bit(tmp_path):
    """Several clients a process, personal tensors and kept optimizers, in memory and on disk."""
    command = [*TORCHRUN, "-m", "tests.helpers.processes", str(tmp_path), "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, capture_output=True, env=environment, timeout=240)
    expected = finished(tmp_path / "one").run_state
    for on_disk in (False, True):
        found, header = read_tensors(tmp_path / f"{on_disk}.safetensors")
        assert header["rows"] == run_metrics(expected)
        assert_equal(found, run_tensors(expected))
