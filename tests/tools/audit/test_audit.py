"""The measures of methods on the tiny CLIP, and what is written of them."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedvlp.methods import PLAN, DiPrompT, PromptFL, SingleDomain, ZeroShotCLIP
from fedvlp.tools.audit import AuditRequest, InversionOptions, MembershipOptions, audit, audit_table, write_audit
from fedvlp.tools.audit.attack import guess_label
from fedvlp.tools.audit.membership import measure_membership
from fedvlp.tools.audit.output import COLUMNS
from fedvlp.tools.audit.words import server_words
from fedvlp.tools.explain.words import prompt_words
from fedvlp.utils.errors import UserError

SHORT = AuditRequest(
    inversion=InversionOptions(gradients=1, steps=1),
    membership=MembershipOptions(images=6, resamples=20),
)
NUMBER = (int, float)
TEXT = str
OPTIONAL_TEXT = (str, type(None))
LIKENESS = {"mse": NUMBER, "psnr": NUMBER, "ssim": NUMBER, "feature_cosine": NUMBER}
RESULT = {
    **{"name": TEXT, "members": int, "others": int, "member_loss": float, "other_loss": float},
    **{"auc": float, "low": float, "high": float},
}
SCHEMA = {
    "format": int,
    "method": TEXT,
    "is_trained": bool,
    "clip": TEXT,
    "clip_fingerprint": TEXT,
    "seed": int,
    "inversion": {
        "options": {
            **{"gradients": int, "images": int, "steps": int, "step_size": NUMBER, "distance": TEXT},
            **{"total_variation": NUMBER, "labels": TEXT, "phase": OPTIONAL_TEXT},
        },
        "phase": TEXT,
        "sent": {...: [int]},
        "picture": {"title": TEXT, "caption": TEXT, "alt": TEXT},
        "mean": {...: LIKENESS},
        "images": [
            {
                **{"image": TEXT, "client": TEXT, "class": TEXT, "source": TEXT},
                **{"guessed_class": OPTIONAL_TEXT, "gradient_distance": (float, type(None)), **LIKENESS},
            }
        ],
    },
    "membership": {
        "options": {"images": int, "resamples": int, "confidence": NUMBER},
        "others": TEXT,
        "model": TEXT,
        "clients": [RESULT],
        "all": RESULT,
    },
    "words": {
        "typical_distance": float,
        "hidden": [TEXT],
        "prompts": {...: [[{"text": TEXT, "token": int, "distance": float}]]},
    },
}


def assert_fits(value, schema, where="audit.json"):
    if isinstance(schema, dict):
        assert isinstance(value, dict), where
        expected = dict.fromkeys(value, schema[...]) if ... in schema else schema
        assert value.keys() == expected.keys(), where
        for key, inner in expected.items():
            assert_fits(value[key], inner, f"{where}: {key}")
    elif isinstance(schema, list):
        assert isinstance(value, list), where
        for item in value:
            assert_fits(item, schema[0], where)
    else:
        assert isinstance(value, schema), f"{where} is {value!r}"
        assert schema is bool or not isinstance(value, bool), where


def test_files_have_one_schema_and_the_same_numbers(audited, tmp_path):
    found = audit(audited(PromptFL, prompt_length=2), SHORT)
    paths = write_audit(tmp_path / "made" / "here", found)
    assert [path.name for path in paths] == ["audit.json", "audit.csv", "inversion.png"]
    facts = json.loads(paths[0].read_text(encoding="utf-8"))
    assert_fits(facts, SCHEMA)
    assert facts == found.facts
    with paths[1].open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(COLUMNS)
    values = {tuple(row[name] for name in COLUMNS[:-1]): float(row["value"]) for row in rows}
    assert len(values) + sum(row["measure"] == "words" for row in rows) >= len(rows), "no number stands there twice"
    for row in facts["inversion"]["images"]:
        assert values["inversion", row["client"], row["image"], row["source"], "ssim"] == row["ssim"]
    for result in (*facts["membership"]["clients"], facts["membership"]["all"]):
        assert values["membership", result["name"], "validation", "the server's", "auc"] == result["auc"]
    assert sum(row["measure"] == "words" for row in rows) == 2 * 3
    assert paths[2].read_bytes().startswith(b"\x89PNG")
    means = facts["inversion"]["mean"]
    assert list(means) == ["prompts", "full model", "full model, closed form", "same class", "grey", "noise"]
    assert means["full model, closed form"]["ssim"] > 0.99
    assert means["prompts"]["ssim"] < 0.6
    assert facts["inversion"]["sent"] == {"prompt": [2, 64]}
    table = audit_table(found.facts)
    assert all(name in table for name in ("prompts", "full model, closed form", "same class", "AUC", "ink", "paint"))


def test_the_same_seed_gives_the_same_audit_whatever_was_drawn_before(audited):
    method = audited(PromptFL, prompt_length=2)
    first = audit(method, SHORT)
    torch.rand(7)
    before = torch.get_rng_state()
    again = audit(method, SHORT)
    assert again.facts == first.facts
    assert again.picture.image("png") == first.picture.image("png")
    assert torch.equal(torch.get_rng_state(), before)
    other = audit(method, replace(SHORT, kinds=["membership"], seed=1))
    assert other.facts["membership"] != first.facts["membership"]


@pytest.mark.parametrize(
    ("kind", "options"),
    [(DiPrompT, {"prompt_length": 4, "upload_query": False}), (SingleDomain, {"prompt_length": 2})],
)
def test_an_audit_leaves_the_method_as_it_was(audited, kind, options):
    method = audited(kind, **options)
    if method.module.personal:
        method = replace(method, personal={client: {"prompt": torch.full((2, 64), 0.1 * client)} for client in (0, 1)})
    before = {name: value.clone() for name, value in method.module.communicable_state().items()}
    audit(method, SHORT)
    for name, value in method.module.communicable_state().items():
        assert torch.equal(value, before[name]), name
    assert method.module.context is None
    assert not any(weight.requires_grad for weight in method.clip.parameters())


def test_several_images_of_a_gradient_are_put_in_their_order(audited):
    request = replace(SHORT, kinds=["inversion"], inversion=InversionOptions(gradients=1, images=3, steps=1))
    facts = audit(audited(PLAN, prompt_length=2), request).facts["inversion"]
    assert facts["sent"].keys() == {"pool.own.text", "pool.own.visual"}
    assert list(facts["mean"]) == ["prompts", "full model", "same class", "grey", "noise"]
    assert len(facts["images"]) == 5 * 3


def test_the_class_is_guessed_by_the_least_distance(audited):
    distances = [0.4, 0.3, 0.1, 0.2]
    assert guess_label(distances.__getitem__, 4) == 2
    request = replace(SHORT, kinds=["inversion"], inversion=InversionOptions(gradients=1, steps=1, labels="guessed"))
    facts = audit(audited(PromptFL, prompt_length=2), request).facts
    guesses = {row["source"]: row["guessed_class"] for row in facts["inversion"]["images"]}
    assert guesses["prompts"] in ("circle", "square", "star")
    assert guesses["noise"] is None
    assert "class guessed from the gradient of the prompts: right for" in audit_table(facts)


def test_members_are_told_by_the_loss_of_each_image(audited):
    method = audited(PromptFL, prompt_length=2)
    method.module.eval()
    options = MembershipOptions(resamples=5)
    results = measure_membership(method.module, method.images, method.state_of, options, seed=0)
    assert [result.name for result in results] == ["ink", "paint", "all"]
    losses = []
    (group,) = list(method.images.training.values())[1]
    with torch.no_grad():
        for index in range(len(group)):
            losses.append(F.cross_entropy(method.module(group.read([index])), group.labels[index : index + 1]).item())
    assert results[1].member_loss == pytest.approx(np.mean(losses), rel=1e-4)
    assert results[2].members == results[0].members + results[1].members
    assert results[2].others == results[0].others + results[1].others


def test_a_method_without_a_server_is_measured_with_its_clients_own_prompts(audited):
    method = audited(SingleDomain, prompt_length=2)
    own = {0: torch.zeros(2, 64), 1: torch.full((2, 64), 0.3)}
    method = replace(method, personal={client: {"prompt": prompt} for client, prompt in own.items()})
    found = audit(method, SHORT)
    assert found.facts["membership"]["model"] == "each client's own"
    assert found.facts["inversion"]["sent"] == {}
    assert "prompts" not in found.facts["inversion"]["mean"]
    assert found.facts["words"]["hidden"] == ["prompt"]
    table = audit_table(found.facts)
    assert "clients send nothing" in table
    assert "The server has no text prompts." in table
    method.module.eval()
    losses = {}
    for client, groups in method.images.training.items():
        method.module.load_state({"prompt": own[client.id]})
        with torch.no_grad():
            logits = method.module(groups[0].read(range(len(groups[0]))))
        losses[client.name] = F.cross_entropy(logits, groups[0].labels).item()
    results = measure_membership(method.module, method.images, method.state_of, MembershipOptions(resamples=5), seed=0)
    assert {result.name: result.member_loss for result in results[:2]} == pytest.approx(losses, rel=1e-4)


def test_words_are_those_of_the_servers_prompts(audited):
    method = audited(DiPrompT, prompt_length=4, without=("ensemble",), upload_query=False)
    found = server_words(method.module, method.deployed)
    assert found.hidden == ["query prompt"]
    assert sorted(found.words) == ["global prompt", "prompt of ink", "prompt of paint"]
    assert found.words["global prompt"] == prompt_words(method.clip, {"": method.deployed["global_prompt"]}, 3)[""]
    assert method.module.query_prompt.isfinite().all()


def test_what_a_method_does_not_have_is_left_out_or_refused(audited, tmp_path):
    method = audited(ZeroShotCLIP)
    found = audit(method, SHORT)
    assert [line.split(":")[0] for line in found.left_out] == ["inversion left out", "words left out"]
    (tmp_path / "inversion.png").write_bytes(b"of an audit before")
    assert [path.name for path in write_audit(tmp_path, found)] == ["audit.json", "audit.csv"]
    assert not (tmp_path / "inversion.png").exists()
    for kind, message in (("inversion", "trains nothing"), ("words", "no vectors that stand among words")):
        with pytest.raises(UserError, match=message):
            audit(method, replace(SHORT, kinds=[kind]))
    with pytest.raises(UserError, match="no images of clients"):
        audit(replace(method, images=None), replace(SHORT, kinds=["membership"]))
    asked = replace(SHORT, kinds=["inversion"], inversion=InversionOptions(phase="x"))
    with pytest.raises(UserError, match="has no phase 'x'; it has train"):
        audit(audited(PromptFL, prompt_length=2), asked)


def test_a_gradient_of_zero_is_refused(audited):
    request = replace(SHORT, kinds=["inversion"], inversion=InversionOptions(phase="aggregators"))
    with pytest.raises(UserError, match="The gradient of the prompts has the length 0"):
        audit(audited(PLAN, prompt_length=2), request)
