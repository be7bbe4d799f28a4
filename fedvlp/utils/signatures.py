"""The arguments of a class, known without making one."""

from __future__ import annotations

import inspect


def constructor_arguments(kind: type) -> dict[str, inspect.Parameter]:
    """Returns all arguments that a class takes by name, those of its bases included where it passes them on.

    >>> class Base:
    ...     def __init__(self, depth=1): ...
    >>> class Method(Base):
    ...     def __init__(self, share=0.1, **options): ...
    >>> list(constructor_arguments(Method))
    ['share', 'depth']
    """
    arguments: dict[str, inspect.Parameter] = {}
    # A constructor with `**options` also takes what the next one in the order of classes takes.
    for base in kind.__mro__:
        if "__init__" not in vars(base):
            continue
        passes_on = False
        for each in list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]:
            if each.kind is each.VAR_KEYWORD:
                passes_on = True
            elif each.kind is not each.VAR_POSITIONAL:
                arguments.setdefault(each.name, each)
        if not passes_on:
            break
    return arguments
