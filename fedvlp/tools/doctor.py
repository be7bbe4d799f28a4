"""The command ``fedvlp doctor``: shows facts about this machine, then tests each of its devices."""

import argparse
import io
import json
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from importlib.metadata import distributions, metadata, requires
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from huggingface_hub import constants, get_session
from packaging.requirements import Requirement
from torch import Tensor, cuda

from fedvlp import Client, FederatedDataModule, FederatedModule, RoundContext, __version__
from fedvlp.testing.contract import require
from fedvlp.testing.method import check_resumed_run
from fedvlp.testing.runs import CLASSES, small_run, train_reference, write_images
from fedvlp.training.setup import choose_precision
from fedvlp.utils.errors import escape_control_chars
from fedvlp.utils.files import free_bytes, size_in_words

METHODS = ("PromptFL", "TRIP", "PLAN", "DiPrompT", "FedCLIP")
TOLERANCES = {"loss": 1e-4, "gradients": 1e-3}
"""Largest relative differences between devices; usually 3e-7 and 5e-6, or 2e-5 and 7e-5 with TF32 convolutions."""


def run_doctor(arguments: Sequence[str]) -> int:
    """Print facts, then the result of each check; return 0 if all checks pass, otherwise 1."""
    parser = argparse.ArgumentParser("fedvlp doctor", description="Describe this machine, and test its devices.")
    parser.add_argument("--json", action="store_true", help="print one JSON object, for bug reports")
    as_json = parser.parse_args(arguments).json
    page = io.StringIO() if as_json else sys.stdout
    facts = {name: attempt(find)[1] for name, find in FACTS.items()}
    page.writelines(escape_control_chars(f"{name:<20}{value}") + "\n" for name, value in facts.items())
    checks = []
    with TemporaryDirectory(prefix="fedvlp-doctor-") as folder:
        for device, name, check in self_test(Path(folder)):
            ok, found = attempt(check)
            checks.append({"device": device, "check": name, "ok": ok, "found": found})
            page.write(escape_control_chars(f"{device:<8}{name:<32}{'ok' if ok else 'FAILED':<8}{found}") + "\n")
    if as_json:
        sys.stdout.write(json.dumps({"facts": facts, "checks": checks}, indent=2) + "\n")
    return 0 if all(check["ok"] for check in checks) else 1


def attempt(find: Callable[[], str]) -> tuple[bool, str]:
    """Call a function silently, and return whether it succeeded, with its result or error."""
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            return True, find()
    except (Exception, SystemExit) as error:  # a broken machine can raise any exception
        return False, f"{type(error).__name__}: {error}".splitlines()[0]
    finally:
        logging.disable(logging.NOTSET)
        torch.use_deterministic_algorithms(False)  # runs leave it enabled


def packages(extra: str = "") -> dict[str, str]:
    """Find the versions of the packages that fedvlp, or one of its extras, requires; ``missing`` if not installed."""
    versions = {}
    for needed in map(Requirement, requires("fedvlp") or ()):
        is_base = needed.marker is None or needed.marker.evaluate({"extra": ""})
        if (is_base and not extra) or f'extra == "{extra}"' in str(needed.marker):
            versions[needed.name] = next((found.version for found in distributions(name=needed.name)), "missing")
    return versions


def extras() -> str:
    """Describe the installed extras, and the missing packages of the others."""
    states = []
    for extra in metadata("fedvlp").get_all("Provides-Extra") or ():
        missing = [name for name, version in packages(extra).items() if version == "missing"]
        states.append(f"{extra} missing: {', '.join(missing)}" if missing else f"{extra} installed")
    return "; ".join(states)


def cache_state(folder: str | Path) -> str:
    """Describe a cache's folder and size, the free disk space, and whether it is read-only."""
    path = Path(folder).absolute()
    used = sum(file.lstat().st_size for file in path.rglob("*"))
    nearest = next(parent for parent in (path, *path.parents) if os.path.exists(parent))
    refused = "" if os.access(nearest, os.W_OK | os.X_OK) else ", not writable"
    return f"{path}: {size_in_words(used)}, {size_in_words(free_bytes(path))} free{refused}"


def free_memory() -> str:
    """Describe the available memory."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return size_in_words(1024 * int(kilobytes))


def answer(address: str, is_offline: bool) -> str:
    """Describe the response of a web address, unless offline."""
    return "not tested: offline" if is_offline else f"{address}: {get_session().head(address, timeout=2)}"


FACTS: dict[str, Callable[[], str]] = {
    "fedvlp": lambda: f"{__version__}, Python {platform.python_version()}, CUDA {torch.version.cuda}",
    "packages": lambda: ", ".join(f"{name} {version}" for name, version in packages().items()),
    "extras": extras,
    "system": platform.platform,
    "processor": lambda: f"{torch.backends.cpu.get_cpu_capability()}; {choose_precision('auto', 'cpu')[1]}",
    "cores, threads": lambda: f"{len(os.sched_getaffinity(0))}, {torch.get_num_threads()}",
    "free memory": free_memory,
    "GPUs": lambda: "; ".join(map(str, map(cuda.get_device_properties, range(cuda.device_count())))) or "none",
    "auto precision": lambda: ": ".join(choose_precision("auto", "auto")),
    "cache": lambda: cache_state(FederatedDataModule().cache_dir or ""),
    "Hugging Face cache": lambda: cache_state(constants.HF_HUB_CACHE),
    "Hugging Face hub": lambda: answer(constants.ENDPOINT, constants.HF_HUB_OFFLINE),
    "W&B": lambda: answer("https://api.wandb.ai", os.environ.get("WANDB_MODE", "online") != "online"),
}
"""Functions that collect the facts; some work only on Linux."""


def self_test(folder: Path) -> Iterator[tuple[str, str, Callable[[], str]]]:
    """Yield device, name and function of each check; the function returns its finding, or raises."""
    images = write_images(folder / "images")
    gpus = [f"cuda:{index}" for index in range(cuda.device_count())]
    gpus += ["mps:0"] * torch.backends.mps.is_available()
    for device in map(torch.device, ("cpu", *gpus)):
        options = [f"--trainer.accelerator={device.type}", "--trainer.deterministic=true"]
        options.append(f"--trainer.devices={1 if device.index is None else [device.index]}")
        build = partial(small_run, images, folder / device.type / str(device.index))
        for method in METHODS:
            compare = partial(compare_gradients, partial(build, [f"--model={method}"]), device)
            yield str(device), f"{method}: loss, gradients", compare
        run = partial(build, ["--model=PromptFL"], *options)
        yield str(device), "resumed run: same bytes", partial(compare_resumed, run)
    if len(gpus) > 1:
        yield "cuda", "two processes: same bytes", partial(compare_processes, "cuda", images, folder)


def step(module: FederatedModule, inputs: Any, labels: Tensor) -> list[Tensor]:
    """Compute a training step's loss, and all gradients as one vector, and move both to the CPU."""
    module.train().start_client(RoundContext(0, module.configure_phases()[0], Client(0, 0, 16, "first")))
    module.zero_grad()
    loss: Any = module.training_step((inputs, labels), 0)
    loss.backward()
    gradients = [value.grad.flatten() for value in module.trainable_by_name().values() if value.grad is not None]
    return [loss.detach().cpu(), torch.cat(gradients).cpu()]


def compare_gradients(build: Callable[..., Any], device: torch.device) -> str:
    """Compare a method's first step on random images with the same step on the CPU."""
    torch.manual_seed(0)
    module = build().model
    images = torch.randn(8, 3, module.clip.image_size, module.clip.image_size)
    labels = torch.arange(8) % len(CLASSES)
    values = step(module.to(device), images.to(device), labels.to(device))
    expected = step(module.cpu(), images, labels)
    found = "from the CPU:"
    for name, value, reference in zip(TOLERANCES, values, expected, strict=True):
        difference = float((value - reference).norm() / reference.norm())
        found += f" {name} {difference:.0e} (at most {TOLERANCES[name]:.0e})"
        require(difference <= TOLERANCES[name], found)
    return found


def compare_resumed(build: Callable[..., Any]) -> str:
    """Compare a run that resumes after its first round with an uninterrupted run."""
    check_resumed_run(train_reference(build))
    return "prompts.safetensors is equal"


def compare_processes(accelerator: str, images: Path, folder: Path) -> str:
    """Compare the prompts of a run on two devices with a run on one device."""
    written = []
    command = "fit --model PromptFL --config data/folders --model.clip.name fedvlp-tiny --data.cache_dir null"
    for devices in (1, 2):
        options = [f"--data.root={images}", f"--trainer.default_root_dir={folder / str(devices)}", "--trainer.rounds=1"]
        options += [f"--trainer.accelerator={accelerator}", f"--trainer.devices={devices}"]
        options.append("--trainer.deterministic=true")
        # Lightning starts the second process with the command line of the first.
        program = [sys.executable, "-m", "fedvlp", *command.split(), *options]
        ended = subprocess.run(program, capture_output=True, text=True, timeout=300)
        require(ended.returncode == 0, ended.stderr.strip().rpartition("\n")[-1])
        written += [path.read_bytes() for path in (folder / str(devices)).rglob("prompts.safetensors")]
    require(written[0] == written[1], "prompts.safetensors differs from the file of one process")
    return "prompts.safetensors is equal"
