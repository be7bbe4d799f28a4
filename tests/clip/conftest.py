"""Small architectures, some registered with open_clip, and files of their weights."""

from copy import deepcopy

import pytest

VIT = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 32, "patch_size": 8, "width": 48, "layers": 2, "head_width": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 3},
}
RESNET = {
    **VIT,
    "vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None, "head_width": 16},
}
CUSTOM = {**VIT, "custom_text": True, "text_cfg": {**VIT["text_cfg"], "proj_bias": True}}


@pytest.fixture(scope="session")
def configs():
    return {"vit": VIT, "resnet": RESNET, "custom": CUSTOM, "quick": {**VIT, "quick_gelu": True}}


@pytest.fixture(scope="session")
def make_clip():
    from fedvlp.clip import CLIP, build_model
    from tests.helpers.clips import make_tokenizer

    def make(config, **options):
        tokenizer = make_tokenizer(context_length=config["text_cfg"]["context_length"])
        return CLIP(build_model(deepcopy(config)), tokenizer, config, **options)

    return make


@pytest.fixture(scope="session")
def clip(make_clip):
    return make_clip(VIT)


NAME = "small"


@pytest.fixture
def small(monkeypatch, configs):
    """A small architecture registered with open_clip, with and without QuickGELU, and two published tags."""
    import open_clip

    from fedvlp.clip import build_model, weights

    registered = {**open_clip.factory._MODEL_CONFIGS, NAME: configs["vit"], "small-resnet": configs["resnet"]}
    monkeypatch.setattr(open_clip.factory, "_MODEL_CONFIGS", registered)
    tags = {
        "openai": {"url": "https://example.org/abc/small.pt", "hf_hub": "some/small/", "quick_gelu": True},
        "laion": {"url": "https://example.org/laion.pt", "quick_gelu": False},
    }
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, NAME, tags)
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, f"{NAME}-quickgelu", {"openai": tags["openai"]})
    # Tests replace downloads, which check the hub first.
    monkeypatch.setattr(weights, "check_hub", lambda: None)
    return build_model(configs["vit"], seed=5)


@pytest.fixture
def offline(monkeypatch):
    import open_clip

    from fedvlp.clip import hugging_face

    def refuse(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(open_clip, "download_pretrained", refuse)
    monkeypatch.setattr(hugging_face, "snapshot_download", refuse)


@pytest.fixture
def save():
    """Save a model's state dict in the format of the file's suffix; return the path as text."""
    import torch
    from safetensors.torch import save_file

    def save_model(model, path, **extra):
        if path.suffix == ".safetensors":
            save_file(model.state_dict(), path)
        else:
            state = {f"module.{name}": value for name, value in model.state_dict().items()}
            torch.save({"state_dict": state, **extra}, path)
        return str(path)

    return save_model


@pytest.fixture
def uses_quick_gelu():
    return lambda clip: any(type(module).__name__ == "QuickGELU" for module in clip.modules())
