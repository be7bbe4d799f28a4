"""Methods used for other classes: equal to a method created for these classes, or rejected."""

import pytest
import torch
import yaml

import fedvlp
from fedvlp.core.module import FederatedModule
from fedvlp.utils.config_files import configs_folder
from fedvlp.utils.digests import constructor_arguments
from fedvlp.utils.errors import UserError
from tests.helpers.assertions import assert_equal
from tests.helpers.configs import EQUIVALENT, METHODS, each_config

OWN = ["red car", "dog", "owl"]
OTHERS = ["house", "blue bird", "cow"]  # the same number, so that shapes do not reveal them
OF_THEIR_CLASSES = {"fed_adg", "fed_apt", "fed_deap", "fed_med_clip", "fed_sr", "fine_tuning_head", "pfed_pg"}
OF_THEIR_CLASSES |= {"centred_means", "latte", "tip_adapter"}
OF_THEIR_CLASSES |= {"fed3r", "fed_cof", "fed_gda", "fed_ncm", "linear_probe", "promptfl_class_specific", "stable_fdg"}
GIVEN = {"domains": ["ink", "paint"], "num_clients": 2, "templates": 2}


def make(name, class_names, clip):
    """Create the method of a config for these classes."""
    config = yaml.safe_load((configs_folder() / "methods" / f"{name}.yaml").read_text())["model"]
    kind = getattr(fedvlp, config["class_path"])
    known = constructor_arguments(kind)
    options = {key: value for key, value in config.get("init_args", {}).items() if key not in ("clip", "optimizer")}
    options |= {key: value for key, value in GIVEN.items() if key in known}
    torch.manual_seed(0)
    return kind(class_names, clip=clip, **options).eval()


def perturb(module):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in module.state_dict(keep_vars=True).values():
            if tensor.is_floating_point():
                tensor.add_(0.01 * torch.randn(tensor.shape, generator=generator).abs())
    return module


@pytest.mark.parametrize("name", each_config({*METHODS} - EQUIVALENT))
def test_it_classifies_other_classes_like_a_method_created_for_them(name, clip, images):
    method = perturb(make(name, OWN, clip))
    if name in OF_THEIR_CLASSES:
        with pytest.raises(
            UserError, match=rf"^{type(method).__name__} can't classify other classes, because the shape"
        ):
            method.for_classes(OTHERS)
        return
    before = torch.get_rng_state()
    others = method.for_classes(OTHERS)
    assert torch.equal(torch.get_rng_state(), before)
    reference = make(name, OTHERS, clip)
    reference.load_state_dict(method.state_dict())
    with torch.no_grad():
        assert torch.equal(others(images), reference(images))
    assert others.describe() == {**method.describe(), "class_names": OTHERS}
    assert others.clip is method.clip
    assert others.make_optimizer is method.make_optimizer
    if not name.startswith("zero_shot"):
        assert_equal(others.state_dict(), method.state_dict())


def test_later_training_updates_the_copy(clip, images):
    method = perturb(make("promptfl", OWN, clip))
    first = method.for_classes(OTHERS)(images).detach().clone()
    perturb(method)
    again = method.for_classes(OTHERS)
    assert again is method.for_classes(OTHERS)
    reference = make("promptfl", OTHERS, clip)
    reference.load_state_dict(method.state_dict())
    assert torch.equal(again(images), reference(images))
    assert not torch.equal(again(images), first)


class NoClasses(FederatedModule):
    """A method without class names."""

    def __init__(self, learning_rate: float = 0.1):
        super().__init__()


def test_a_method_without_class_names_explains_its_error():
    with pytest.raises(UserError, match=r"NoClasses has no argument class_names, so it can.t classify other classes"):
        NoClasses().for_classes(OTHERS)
