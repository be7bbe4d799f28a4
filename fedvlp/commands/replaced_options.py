"""Discard the options of a replaced class. This is the only patch of jsonargparse.

jsonargparse keeps the options that both classes accept, and no public setting prevents that. If a user replaces SGD by
Adam, Adam would inherit SGD's weight decay, whether a config or the method's constructor had set it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import Parameter, signature
from typing import Any

from jsonargparse import Namespace, _typehints

from fedvlp.core.module import FederatedModule
from fedvlp.data import FederatedDataModule


@contextmanager
def discarding_replaced_options() -> Iterator[None]:
    """Discard the options of a replaced class while a command line is parsed.

    Options without a default in the new class are kept, e.g. the number of clients of a partition. The options of
    methods and data sets are kept as well, because the class and its options may come from different configs.
    """
    original = _typehints.discard_init_args_on_class_path_change

    def discard(parser: Any, previous: Any, value: Any) -> None:
        if not previous or previous.get("init_args") is None or previous["class_path"] == value["class_path"]:
            return
        kind = _typehints.import_object(value["class_path"])
        if isinstance(kind, type) and issubclass(kind, (FederatedModule, FederatedDataModule)):
            original(parser, previous, value)
            return
        options = previous["init_args"]
        parameters = signature(kind).parameters
        required = [name for name in parameters if parameters[name].default is Parameter.empty and name in options]
        previous["init_args"] = Namespace({name: options[name] for name in required})

    _typehints.discard_init_args_on_class_path_change = discard
    try:
        yield
    finally:
        _typehints.discard_init_args_on_class_path_change = original
