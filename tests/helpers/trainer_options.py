"""Options of a federation by their short names, put into the groups that have them."""

from dataclasses import fields

from fedvlp.training.options import GROUPS

GROUP_OF = {field.name: name for name, group in GROUPS.items() for field in fields(group)}


def nested(options):
    """Returns the options as a config has them: those of a group under its name."""
    result = {}
    for name, value in options.items():
        if name in GROUP_OF:
            result.setdefault(GROUP_OF[name], {})[name] = value
        else:
            result[name] = value
    return result


def grouped(options):
    """Returns the options as ``Federation`` takes them, with the groups made."""
    return {
        name: GROUPS[name](**value) if name in GROUPS and isinstance(value, dict) else value
        for name, value in nested(options).items()
    }
