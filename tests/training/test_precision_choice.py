"""Which arithmetic `auto` is: what the hardware has decides, and no measurement."""

from __future__ import annotations

import pytest
import torch

from fedvlp.training.precision import bfloat16_units, choose_precision
from tests.helpers.toy_federation import Linear, Points, federation


@pytest.fixture
def machine(monkeypatch):
    """Sets what the machine has: AVX512-BF16, AMX, CUDA, a GPU that multiplies bfloat16, Apple's GPU."""

    def has(units=False, tiles=False, cuda=False, half_on_gpu=False, mps=False):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: units, raising=False)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles, raising=False)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: half_on_gpu)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return has


@pytest.mark.parametrize(
    ("has", "accelerator", "name", "reason"),
    [
        ({}, "auto", "32-true", "no units"),
        ({"units": True}, "auto", "bf16-mixed", "AVX512-BF16"),
        ({"tiles": True}, "cpu", "bf16-mixed", "AMX"),
        ({"units": True, "cuda": True}, "auto", "32-true", "this GPU does not"),
        ({"cuda": True, "half_on_gpu": True}, "gpu", "bf16-mixed", "this GPU multiplies"),
        ({"units": True, "cuda": True, "half_on_gpu": True}, "cpu", "bf16-mixed", "AVX512-BF16"),
        ({"units": True, "mps": True}, "auto", "32-true", "CUDA alone"),
        ({"units": True}, "tpu", "32-true", "CUDA alone"),
    ],
)
def test_the_hardware_decides(machine, has, accelerator, name, reason):
    machine(**has)
    choice = choose_precision("auto", accelerator)
    assert choice.name == name
    assert reason in choice.reason


def test_what_is_asked_for_is_taken(machine):
    machine(units=True)
    assert choose_precision("32-true", "auto") == ("32-true", "")


def test_questions_that_pytorch_no_longer_answers_count_as_no(monkeypatch):
    monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported", raising=False)
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported", raising=False)
    assert bfloat16_units() == ""


def test_a_run_says_what_was_chosen_and_records_it(machine, tmp_path, capsys):
    machine(units=True)
    run = federation(tmp_path, rounds=1, precision="auto", default_callbacks=False)
    run.fit(Linear(), Points())
    assert "Precision bf16-mixed: this processor multiplies bfloat16 by AVX512-BF16." in capsys.readouterr().out
    assert run.description["training"]["precision"] == "bf16-mixed"
