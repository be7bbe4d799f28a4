"""Discarding the options of a class that another class replaces: the only function of jsonargparse that is patched.

jsonargparse keeps the options that both classes accept. Adam would inherit the weight decay of the SGD that it
replaces, whether a config has set it or the method's constructor, and no public setting prevents that.
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

    Options without a default in the new class are kept, such as the number of clients of a partition. So are the
    options of methods and data sets: one config may name the class and another one its options.
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
