"""Sort a federation's options into their groups, such as ``local`` and ``server``."""

from dataclasses import fields

from fedvlp.training.options import GROUPS

GROUP_OF = {field.name: name for name, group in GROUPS.items() for field in fields(group)}


def nested(options):
    """Nest each option under the name of its group, like in a config."""
    result = {}
    for name, value in options.items():
        if name in GROUP_OF:
            result.setdefault(GROUP_OF[name], {})[name] = value
        else:
            result[name] = value
    return result


def grouped(options):
    """Convert options to arguments of ``Federation``, with instances of the groups."""
    return {
        name: GROUPS[name](**value) if name in GROUPS and isinstance(value, dict) else value
        for name, value in nested(options).items()
    }
