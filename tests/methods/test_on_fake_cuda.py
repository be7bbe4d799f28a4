"""Every method on a fake GPU, where an operation fails if one of its tensors stays on the CPU.

Each method runs on the CPU first, because its cached tensors must move to the GPU as well.
"""

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import fedvlp
from fedvlp.clip import load_clip
from fedvlp.core.module import FederatedModule, check_phases
from fedvlp.core.phases import Phase, RoundContext
from fedvlp.core.protocols import Batch
from fedvlp.core.several_labels import with_negative_class
from fedvlp.core.state import Client, ClientUpdate, ServerState, State, detached
from fedvlp.utils.config_files import configs_folder
from fedvlp.utils.digests import constructor_arguments
from tests.helpers.configs import EQUIVALENT, METHODS, each_config
from tests.helpers.fake_cuda import NEEDS_FAKE_CUDA, VALUES_NEEDED, fake_cuda, move_module

CLIENTS = [Client(0, 0, 7, "ink"), Client(1, 1, 5, "paint")]
GIVEN = {"class_names": ["red", "pale blue", "green"], "domains": ["ink", "paint"], "num_clients": len(CLIENTS)}

NEED_VALUES = {
    "ccst": {"train": "the other clients are those whose slots are filled"},
    "diprompt": {"train": "only prompts of the domains in a batch are encoded with gradients"},
    "elcfs": {"train": "the other clients are those whose slots are filled"},
    "fed_apt": {"evaluate": "each distinct mixture of keys is encoded once"},
    "hcvp": {"train": "vectors without a positive are ignored"},
    "plan": {"train": "slots of clients that never sent anything are left out"},
    "proda": {"train": "the drawn prompts have different class positions"},
    "stable_fdg": {"train": "styles are drawn only if any exist"},
    "trip": {"prepare": "clustering checks whether it has converged"},
}
"""Steps that need values, by config and step, with the decision that depends on a value."""


def make(name: str) -> FederatedModule:
    model = yaml.safe_load((configs_folder() / "methods" / f"{name}.yaml").read_text())["model"]
    kind = getattr(fedvlp, model["class_path"])
    options = {option: value for option, value in GIVEN.items() if option in constructor_arguments(kind)}
    options |= model.get("init_args", {})
    options.pop("optimizer", None)
    if not kind.supports_one_label:
        options["class_names"] = with_negative_class(options["class_names"], "thing")
    if "templates" in constructor_arguments(kind):
        options["templates"] = 2
    return kind(clip=load_clip("fedvlp-tiny"), **options)


def make_batch(method: FederatedModule, images: Tensor) -> Batch:
    inputs = prepare(method, images)
    if method.needs_domains:
        inputs["domain"] = torch.tensor([0, 1, 0, 1])
    labels = torch.tensor([0, 1, 2, 1])
    return inputs, labels if method.supports_one_label else F.one_hot(labels).float()


@torch.no_grad()
def prepare(method: FederatedModule, images: Tensor) -> State:
    return method.eval().precompute(images)


def local_step(method: FederatedModule, batch: Batch, phase: Phase, client: Client) -> Tensor | None:
    method.start_client(RoundContext(0, phase, client))
    loss = method.train().training_step(batch, 0)
    if phase.one_pass:
        return None
    method.on_train_batch_end(loss.detach(), batch, 0)
    return loss


def one_round(method: FederatedModule, batch: Batch) -> list[Tensor | None]:
    server = ServerState.start(method.shared_state())
    personal = method.personal_state()
    losses = []
    for phase in check_phases(method):
        updates = []
        for client in CLIENTS:
            method.load_state(server.shared | personal)
            losses.append(local_step(method, batch, phase, client))
            updates.append(ClientUpdate(client, detached(method.upload_state()), client.num_examples))
        server = phase.strategy.aggregate(server, updates)
    method.load_state(server.deployed)
    return losses


@torch.no_grad()
def evaluate(method: FederatedModule, batch: Batch) -> Tensor:
    method.context = None
    return method.eval()(batch[0])


@NEEDS_FAKE_CUDA
@pytest.mark.parametrize("name", each_config({*METHODS} - EQUIVALENT, {"plan", "trip"}))
def test_all_tensors_of_a_method_move_to_its_device(name):
    method = make(name)
    images = torch.rand(4, 3, method.clip.image_size, method.clip.image_size)
    batch = make_batch(method, images)
    evaluate(method, batch)
    for phase in check_phases(method):
        local_step(method, batch, phase, CLIENTS[0])
    needs_values = set()
    with fake_cuda() as to_cuda:
        move_module(method, to_cuda)
        images, batch = tree_map(to_cuda, (images, batch))
        parts = {"prepare": (prepare, images), "train": (one_round, batch), "evaluate": (evaluate, batch)}
        for part, (run, inputs) in parts.items():
            try:
                results = tree_leaves(run(method, inputs))
                assert {result.device.type for result in results if result is not None} <= {"cuda"}
            except VALUES_NEEDED:
                needs_values.add(part)
    # A listed step that no longer needs values also fails, so that the list shrinks.
    assert needs_values == NEED_VALUES.get(name, {}).keys()
