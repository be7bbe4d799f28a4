"""Measurements, tables, timing inside a run, and the command."""

import mmap
import time
from contextlib import ExitStack
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

import numpy as np
import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import overhead, scale
from benchmarks.figures import plot, plot_over_rounds
from benchmarks.hardware_limits import bandwidth, matrix_rate
from benchmarks.in_subprocess import _call
from benchmarks.measure import describe_machine, measure_for
from benchmarks.step_memory import LiveMemory
from benchmarks.stopwatch import Stopwatch
from benchmarks.synthetic import IdleMethod, NoImages, Points, write_images
from benchmarks.tables import Table
from fedvlp.clip import PromptedTextEncoder
from fedvlp.core.state import Client, ClientUpdate, ServerState
from fedvlp.training import round as one_round


def test_a_function_in_a_subprocess_prints_nothing(capsys):
    assert _call(lambda number: print(number) or number, torch.get_num_threads(), {"number": 3}) == 3
    assert capsys.readouterr().out == ""


def test_a_slow_function_is_measured_once_and_a_quick_one_often():
    calls = []
    assert len(measure_for(lambda: calls.append(0), 1.0, most=5).seconds) == 5
    assert len(calls) == 6  # one warm-up call
    assert len(measure_for(lambda: time.sleep(0.01), 0.001).seconds) == 1
    assert len(measure_for(lambda: time.sleep(0.01), 0.001, least=2).seconds) == 2


def test_peak_memory_is_measured():
    def write_new_pages():  # new memory, independent of earlier tests
        np.frombuffer(mmap.mmap(-1, 2**28), np.uint8).fill(1)

    assert 250 < measure_for(write_new_pages, 0.0).megabytes < 300


def test_memory_counts_new_tensors_alive_at_the_same_time():
    frozen = torch.ones(100)
    memory = LiveMemory([frozen])
    with memory:
        added = frozen[:50] + 1  # 200 bytes; a view needs no memory
        del added
        made = torch.zeros(300)  # 1200
        made = torch.cat([made, frozen])  # 1600, while the others are alive
    assert memory.peak == 1200 + 1600


def test_a_gpu_is_synchronised_and_its_memory_is_measured(monkeypatch):
    cuda = MagicMock()
    cuda.memory_allocated.return_value = 2**20
    cuda.max_memory_allocated.return_value = 4 * 2**20
    cuda.get_device_properties.return_value = SimpleNamespace(name="A card", total_memory=24 * 2**30)
    monkeypatch.setattr(torch, "cuda", cuda)
    assert measure_for(cuda.work, 0.0, device="cuda").megabytes == 3
    called = [name for name, *_ in cuda.method_calls]
    assert called[1:5] == ["reset_peak_memory_stats", "synchronize", "work", "synchronize"]
    assert describe_machine("cuda").startswith("A card, 24 GiB, CUDA")


def test_rates_are_positive():
    assert matrix_rate(size=64, repeats=2) > 0 < bandwidth(megabytes=1, repeats=2)


def test_the_stopwatch_counts_forward_backward_and_optimizer(clip):
    encoder = PromptedTextEncoder(clip, ["dog", "cat"], prompt_length=2)
    prompt = torch.nn.Parameter(encoder.initial_prompt())
    optimizer = torch.optim.SGD([prompt], lr=0.1)
    watch = Stopwatch(encoder)
    started = time.perf_counter()
    features = encoder(prompt)
    forward = watch.seconds["text"]
    features.sum().backward()
    optimizer.step()
    took = time.perf_counter() - started
    assert 0 < forward < watch.seconds["text"]
    assert watch.seconds["optimizer"] > 0
    assert sum(watch.seconds.values()) < took
    assert prompt.grad is not None
    watch.close()
    optimizer.step()
    encoder(prompt)
    assert sum(watch.seconds.values()) < took


def test_the_plain_average_equals_ours():
    clients = [Client(index, 0, 3 + index, str(index)) for index in range(3)]
    updates = [ClientUpdate(client, {"prompts": torch.rand(4)}, client.num_examples) for client in clients]
    server = ServerState.start({"prompts": torch.zeros(4)})
    torch.testing.assert_close(overhead.ours(server, updates), overhead.plain(server, updates))


def test_rounds_of_clients_without_images():
    found = overhead.measure_loop(count=3, rounds=3, shape=(2, 4), files=False).found
    assert len(found.seconds) == 2


def test_synthetic_data(clip, tmp_path):
    write_images(tmp_path, 2, ["a", "b"], 4, size=16)
    assert len(list(tmp_path.rglob("*.jpg"))) == 8
    assert len(NoImages(3).train_dataloader()) == 0 == len(NoImages(3).evaluation_splits())
    assert IdleMethod(clip, (2, 4), (3,)).training_step(None, 0) == 0
    data = Points(4, width=5)
    (inputs, labels), *others = data.train_dataloader(data.clients[1])
    assert inputs["features"].shape == (16, 5)
    assert len(labels) == 16
    assert not others


def test_figures_are_written(tmp_path):
    curve = scale.Curve("clients", [10, 100, 1000], [1.0, 9.0, 100.0], [1.0, 20.0, 200.0], 0.5)
    assert curve.time_slope == pytest.approx(1.0)
    assert scale.Curve("clients", [1, 2], [1, 2], [0, 1]).memory_slope is None
    plot([curve], tmp_path / "deep" / "scale.png")
    plot_over_rounds({"run": [1.0, 2.0, 2.0]}, tmp_path / "memory.png")
    assert len(list(tmp_path.rglob("*.png"))) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--device gpu", "'gpu'"),
        ("--device cuda", "finds no GPU"),
        ("--device cuda --only scale", "is only for local_step"),
    ],
)
def test_an_unavailable_device_is_one_clear_error(monkeypatch, capsys, given, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        command.parse(given.split())
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("target", ["all.md", "results"])
def test_the_command_writes_its_output_to_files(monkeypatch, capsys, tmp_path, target):
    def tables(quick, figures):
        return [Table(f"{quick}", ("", "s"), [["ours", "1"]])]

    arguments = ["--quick", "--only", "scale", "startup", "--output", str(tmp_path / target)]
    monkeypatch.setattr(command.importlib, "import_module", lambda name: SimpleNamespace(NOTES="Why.", tables=tables))
    monkeypatch.setattr(command.sys, "argv", ["", *arguments])
    for _ in range(2):  # a second run replaces the first
        command.main()
    files = sorted(tmp_path.rglob("*.md"))
    assert [file.name for file in files] == (["all.md"] if target == "all.md" else ["scale.md", "startup.md"])
    text = "".join(file.read_text() for file in files)
    assert text.count("| ours | 1 |") == 2
    assert "`python -m benchmarks --quick --only scale startup" in text
    assert text in capsys.readouterr().out


def test_rounds_with_and_without_checks_alternate():
    found = overhead.measure_checks(count=3, pairs=2, max_norm=1e30)
    assert len(found.checked) == len(found.unchecked) == 2
    assert min(*found.checked, *found.unchecked) > 0


def test_measurements_without_checks_accept_invalid_updates():
    update = ClientUpdate(Client(0, 0, 5), {"p": torch.tensor([torch.nan])}, 5)
    with ExitStack() as changes:
        for name, nothing in overhead.WITHOUT_CHECKS.items():
            changes.enter_context(patch(name, nothing))
        assert one_round.update_error(update, {}, {}, None) == ""
    assert one_round.update_error(update, {}, {}, None) != ""
