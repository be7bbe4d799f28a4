"""Federated prompt learning of vision-language models: one frozen CLIP, one federation loop, one file a method.

Glossary:
    client, server      who trains on its own data, and who combines what the clients send
    round, phase        a round is a list of phases; in each, clients train and send, and the server combines
    cohort              the clients sampled for a round
    shared, personal    tensors that clients download, and tensors that stay on the client
    deployed            what is evaluated: the shared tensors, or an average of them over rounds
    source, held-out    domains that clients have, and domains that nobody trains on
    prompt, expert      learned vectors in front of a class name, and one of several prompts that are mixed

Axes of tensors, in docstrings, shape annotations and einsums:
    B images of a batch     P tokens of an image    E experts       L prompt length     C classes
    D text width            W image-token width     d width of the joint features       K clients
    V height and width of an image, so that images are [B, 3, V, V]
"""

from functools import cache
from importlib import import_module
from typing import Any


@cache
def _modules() -> dict[str, str]:
    """The module of each public name: constants first, then classes, then functions, each by the alphabet."""
    # Read when a name is first asked for, since `fedvlp --help` would wait for it as long as for all the rest.
    import ast
    from pathlib import Path

    # The stub lists them for type checkers. It is parsed: what it names would import torch.
    modules: dict[str, str] = {}
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom):
            modules |= {alias.name: str(statement.module) for alias in statement.names}
    ordered = sorted(modules, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    return {name: modules[name] for name in ordered}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first asked for, so that ``import fedvlp`` does not wait for torch."""
    if name == "__all__":
        return list(_modules())
    if name not in _modules():
        raise AttributeError(f"module 'fedvlp' has no attribute {name!r}")
    return getattr(import_module(_modules()[name]), name)


def __dir__() -> list[str]:
    """Lists the public names, whether they were imported already or not."""
    return sorted({*globals(), *_modules()})
