"""Measurements of methods with the tiny CLIP, and the audit's files."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedvlp import PLAN, DiPrompT, FedNCM, PromptFL, SingleDomain, ZeroShotCLIP
from fedvlp.tools.audit import InversionOptions, MembershipOptions, audit, audit_table, write_audit
from fedvlp.tools.audit.membership import measure_membership
from fedvlp.tools.trained_run import read_pixels, training_images
from fedvlp.utils.errors import UserError

INVERSION = InversionOptions(gradients=1, steps=1)
SHORT = {"inversion": INVERSION, "membership": MembershipOptions(images=6, resamples=20)}
SIMILARITIES = {"mse", "psnr", "ssim", "feature_cosine"}
SCHEMA = {
    "": {"method", "is_trained", "clip", "clip_fingerprint", "seed", "inversion", "membership"},
    "inversion": {"options", "phase", "sent", "mean", "images"},
    "membership": {"options", "others", "model", "clients", "all"},
}
IMAGE = {"image", "client", "class", "source", "gradient_distance", *SIMILARITIES}
RESULT = {"name", "members", "others", "member_loss", "other_loss", "auc", "low", "high"}


def test_file_and_table_have_all_keys_and_equal_values(audited, tmp_path):
    facts_before_writing, picture, _ = audit(audited(PromptFL, prompt_length=2), **SHORT)
    paths = write_audit(tmp_path / "new" / "folder", facts_before_writing, picture)
    assert [path.name for path in paths] == ["audit.json", "inversion.png"]
    facts = json.loads(paths[0].read_text(encoding="utf-8"))
    assert facts == facts_before_writing
    for section, keys in SCHEMA.items():
        assert (facts[section] if section else facts).keys() == keys, section
    assert all(row.keys() == IMAGE for row in facts["inversion"]["images"])
    assert all(scores.keys() == SIMILARITIES for scores in facts["inversion"]["mean"].values())
    assert all(row.keys() == RESULT for row in (*facts["membership"]["clients"], facts["membership"]["all"]))
    assert paths[1].read_bytes().startswith(b"\x89PNG")
    means = facts["inversion"]["mean"]
    assert list(means) == ["prompts", "full model", "full model, closed form", "same class", "grey", "noise"]
    assert means["full model, closed form"]["ssim"] > 0.99
    assert means["prompts"]["ssim"] < 0.6
    assert facts["inversion"]["sent"] == {"prompt": [2, 64]}
    table = audit_table(facts_before_writing)
    assert all(name in table for name in ("prompts", "full model, closed form", "same class", "AUC", "ink", "paint"))


def test_an_audit_depends_only_on_its_seed(audited):
    method = audited(PromptFL, prompt_length=2)
    first, picture, _ = audit(method, **SHORT)
    torch.rand(7)
    before = torch.get_rng_state()
    again, same, _ = audit(method, **SHORT)
    assert again == first
    assert same.image("png") == picture.image("png")
    assert torch.equal(torch.get_rng_state(), before)
    other, _, _ = audit(method, ["membership"], **SHORT, seed=1)
    assert other["membership"] != first["membership"]


@pytest.mark.parametrize(
    ("kind", "options"),
    [(DiPrompT, {"prompt_length": 4, "upload_query": False}), (SingleDomain, {"prompt_length": 2})],
)
def test_an_audit_does_not_change_the_method(audited, kind, options):
    method = audited(kind, **options)
    if method.module.personal:
        method = replace(method, personal={client: {"prompt": torch.full((2, 64), 0.1 * client)} for client in (0, 1)})
    before = {name: value.clone() for name, value in method.module.communicable_state().items()}
    audit(method, **SHORT)
    for name, value in method.module.communicable_state().items():
        assert torch.equal(value, before[name]), name
    assert method.module.context is None
    assert not any(weight.requires_grad for weight in method.clip.parameters())


def test_several_images_per_gradient_are_matched_to_the_targets(audited):
    options = replace(INVERSION, images=3)
    facts = audit(audited(PLAN, prompt_length=2), ["inversion"], options)[0]["inversion"]
    assert facts["sent"].keys() == {"pool.own.text", "pool.own.visual"}
    assert list(facts["mean"]) == ["prompts", "full model", "same class", "grey", "noise"]
    assert len(facts["images"]) == 5 * 3


def image_loss(run, images):
    """Compute the mean loss, one image at a time."""
    losses = []
    for image in images:
        with torch.no_grad():
            logits = run.module(read_pixels([image]))
        losses.append(F.cross_entropy(logits, torch.tensor([image.label])).item())
    return np.mean(losses)


def test_a_method_without_a_server_is_audited_with_personal_prompts(audited):
    run = audited(SingleDomain, prompt_length=2)
    own = {0: torch.zeros(2, 64), 1: torch.full((2, 64), 0.3)}
    run = replace(run, personal={client: {"prompt": prompt} for client, prompt in own.items()})
    facts, _, _ = audit(run, **SHORT)
    assert facts["membership"]["model"] == "each client's own"
    assert facts["inversion"]["sent"] == {}
    assert "prompts" not in facts["inversion"]["mean"]
    assert "Clients send no parameters" in audit_table(facts)
    run.module.eval()
    facts = measure_membership(run, MembershipOptions(resamples=5), seed=0)
    for client, images in training_images(run.data).items():
        run.module.load_state({"prompt": own[client.id]})
        assert facts["clients"][client.id]["member_loss"] == pytest.approx(image_loss(run, images), rel=1e-4)


@pytest.mark.parametrize("kind", [FedNCM, ZeroShotCLIP])
def test_unavailable_parts_are_skipped_or_rejected(kind, audited, tmp_path):
    method = audited(kind)
    facts, picture, left_out = audit(method, **SHORT)
    assert [line.split(":")[0] for line in left_out] == ["inversion left out"]
    (tmp_path / "inversion.png").write_bytes(b"of an audit before")
    assert [path.name for path in write_audit(tmp_path, facts, picture)] == ["audit.json"]
    assert not (tmp_path / "inversion.png").exists()
    with pytest.raises(UserError, match="trains nothing"):
        audit(method, ["inversion"], **SHORT)
    for kind in ("inversion", "membership"):
        with pytest.raises(UserError, match="no images of clients"):
            audit(replace(method, data=None), [kind], **SHORT)
    with pytest.raises(UserError, match="has no phase 'x'; it has train"):
        audit(audited(PromptFL, prompt_length=2), ["inversion"], InversionOptions(phase="x"))


def test_a_zero_gradient_is_rejected(audited):
    with pytest.raises(UserError, match="The gradient of the prompts can't be inverted, because its length is 0"):
        audit(audited(PLAN, prompt_length=2), ["inversion"], InversionOptions(phase="aggregators"))
