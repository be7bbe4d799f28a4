"""Files changed at random, most with a checksum that is right again: each is refused in words, or is still right.

``FEDVLP_MUTATIONS=20000 python -m pytest tests/runs/test_mutated_files.py`` tries more than the suite does.
"""

from __future__ import annotations

import json
import os
import random
from copy import deepcopy

import pytest
import torch

from fedvlp.commands.trained_config import trained_config
from fedvlp.methods import PromptFL
from fedvlp.runs.checkpoint import load_checkpoint, save_checkpoint, save_prompts
from fedvlp.runs.run_folder import describe_model, load_trained
from fedvlp.utils import tensor_files
from fedvlp.utils.errors import UserError
from tests.helpers.shapes import unchecked
from tests.helpers.toy_federation import PersonalBias, Points, federation

MUTATIONS = int(os.environ.get("FEDVLP_MUTATIONS", "250"))
DEEP = 5000
ODD = [None, True, -1, 0, 1, 2**63, 10**400, 1e308, -0.5, float("nan"), "", "x", "a" * 5000, "../x", "os.system"]
ODD += [[], {}, [[]], [None], {"": None}, {"class_path": "os.system"}, "\x1b[2J", "\udcff", "[" * 500, {"0": "x"}]


def places(value, path=()):
    """Every place in a JSON value, as the keys that lead there."""
    yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def replace_somewhere(value, generator):
    """Replaces, removes or adds something at a random place below the top of a JSON value."""
    *way, last = generator.choice([path for path in places(value) if path])
    for key in way:
        value = value[key]
    action = generator.randrange(4)
    if action == 0:
        del value[last]
    elif action == 1 and isinstance(value, dict):
        value[generator.choice(["x", "0", "personal"])] = deepcopy(generator.choice(ODD))
    else:
        value[last] = deepcopy(generator.choice(ODD))


def flip_bits(content, generator):
    changed = bytearray(content)
    for _ in range(generator.randint(1, 4)):
        changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
    return bytes(changed)


def cut(content, generator):
    return content[: generator.randrange(len(content))]


def sealed(prefix, data):
    """A file of safetensors' own header, as JSON or text, and of the tensors' bytes, with the right checksum."""
    text = prefix if isinstance(prefix, str) else json.dumps(prefix, separators=(",", ":"))
    raw = text.encode("utf-8", "surrogatepass")
    content = len(raw).to_bytes(8, "little") + raw + data
    begins = content[8:].startswith(tensor_files.START)
    return b"".join(tensor_files._sealed(content)) if begins else content


def parts(content):
    """Safetensors' own header and the tensors' bytes."""
    end = 8 + int.from_bytes(content[:8], "little")
    prefix = json.loads(content[8:end])
    return {"__metadata__": prefix.pop("__metadata__"), **prefix}, content[end:]


def change_header(content, generator):
    prefix, data = parts(content)
    value = json.loads(prefix["__metadata__"]["fedvlp"][64:])
    for _ in range(generator.randint(1, 3)):
        replace_somewhere(value, generator)
    prefix["__metadata__"]["fedvlp"] = "0" * 64 + json.dumps(value)
    return sealed(prefix, data)


def change_tensors(content, generator):
    prefix, data = parts(content)
    metadata = prefix.pop("__metadata__")
    replace_somewhere(prefix, generator)
    return sealed({"__metadata__": metadata, **prefix}, data)


def nest_deeply(content, generator):
    prefix, data = parts(content)
    opening = generator.choice(["[", '{"a":'])
    text = '{"digests": {}, "header": ' + opening * generator.choice([40, DEEP, 20 * DEEP])
    prefix["__metadata__"]["fedvlp"] = "0" * 64 + text
    return sealed(prefix, data)


def change_bytes_of_header(content, generator):
    end = 8 + int.from_bytes(content[:8], "little")
    start = 8 + len(tensor_files.START) + 64
    changed = bytearray(content[:end])
    for _ in range(generator.randint(1, 3)):
        changed[generator.randrange(start, end)] = generator.randrange(256)
    return b"".join(tensor_files._sealed(bytes(changed) + content[end:]))


ACTIONS = [
    flip_bits,
    cut,
    change_header,
    change_header,
    change_header,
    change_tensors,
    change_bytes_of_header,
    nest_deeply,
]


@pytest.fixture(scope="module")
def prompts(clip, tmp_path_factory):
    """PromptFL, and a file of its prompts."""
    model = PromptFL(class_names=["cat", "dog"], clip=clip, prompt_length=2)
    path = tmp_path_factory.mktemp("prompts") / "prompts.safetensors"
    save_prompts(path, model.shared_state(), {}, describe_model(model))
    return model, path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A checkpoint after two rounds."""
    made = federation(tmp_path_factory.mktemp("run"), rounds=2, reset_optimizer=False, default_callbacks=False)
    made.fit(PersonalBias(), Points())
    path = made.folder / "checkpoints" / "round-00002.safetensors"
    save_checkpoint(path, made.run_state, made.description)
    return path


def tried(path, load, seed):
    """Changes a file, loads it and puts it back; returns what came of it, None if it was refused in words."""
    generator = random.Random(seed)
    original = path.read_bytes()
    path.write_bytes(generator.choice(ACTIONS)(original, generator))
    found = None
    message = f"{path}: it was read"
    try:
        with unchecked():  # what users run
            found = load(path)
    except UserError as error:
        message = str(error)
    path.write_bytes(original)
    assert str(path) in message
    assert len(message) < 5000
    return found


def test_mutated_prompts_are_refused_or_right(prompts):
    model, path = prompts
    right = model.shared_state()
    passed = 0
    for seed in range(MUTATIONS):
        config = tried(path, trained_config, seed)
        if config is not None:
            assert config["model"]["class_path"] == f"{PromptFL.__module__}.PromptFL"
        trained = tried(path, lambda path: load_trained(path, model), seed)
        if trained is not None:
            passed += 1
            assert trained[0].keys() == right.keys()
            assert all(torch.equal(value, right[name]) for name, value in trained[0].items())
    assert passed < MUTATIONS / 4


def test_mutated_checkpoints_are_refused_or_right(checkpoint):
    for seed in range(MUTATIONS):
        found = tried(checkpoint, load_checkpoint, -1 - seed)
        if found is not None:
            assert found[0].server.round >= 0
            assert all(isinstance(client, int) for client in found[0].personal)
            assert all(isinstance(row, dict) for row in found[0].history)
