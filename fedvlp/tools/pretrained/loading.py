"""Loading of classifiers from local files or from the Hugging Face hub."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import fedvlp
from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.clip.weights import check_hub
from fedvlp.core.module import FederatedModule
from fedvlp.runs.descriptions import load_deployed_to_all
from fedvlp.runs.run_folder import find_run_folder, read_model
from fedvlp.runs.trusted_classes import check_classes, is_own_class
from fedvlp.tools.pretrained.classifier import PROMPTS_FILE, Classifier
from fedvlp.utils.errors import UserError

HUB_PREFIX = "hf://"
SIGN_IN = (
    "Create a token with write access at https://huggingface.co/settings/tokens, then run `hf auth login` or set "
    "HF_TOKEN."
)


def from_pretrained(
    source: str | Path, *, clip: CLIPSpec | CLIP | str | None = None, allow: Sequence[str] = ()
) -> Classifier:
    """Load a trained model as an image classifier, a plain ``torch.nn.Module`` in evaluation mode.

    Its logits equal the logits of ``fedvlp predict``. By default only fedvlp's classes are instantiated, so that no
    foreign code runs.

    Classify an image with the newest run::

        classifier = from_pretrained("runs")
        probabilities = classifier.predict("photo.jpg")  # [1, C]

    Args:
        source: Folder of a run, of several runs (the newest) or of a pushed model; a ``prompts.safetensors`` or
            checkpoint; or a model on the hub as ``hf://user/name`` or ``hf://user/name@revision``.
        clip: The frozen CLIP, if it is already loaded or its weights have moved. It must have the same weights.
        allow: Modules and paths of classes that the file may name besides fedvlp's own. Importing them runs code.

    Raises:
        UserError: If there is no trained model, it is damaged or was trained with another CLIP, it names a class that
            is not allowed, or its method has personal tensors on each client.
    """
    if str(source).startswith(HUB_PREFIX):
        path = download_prompts(str(source))
    else:
        path = find_run_folder(Path(source)) / PROMPTS_FILE if Path(source).is_dir() else Path(source)
    model = read_model(path)
    check_classes(path, model, allow)
    method = make_method(path, model, clip)
    method.load_state(load_deployed_to_all(path, method))
    return Classifier(method)


def download_prompts(source: str) -> Path:
    """Download the trained tensors of a model on the hub, or find them in the local cache.

    Raises:
        UserError: If the repository has no trained tensors, or the hub can't be reached.
    """
    repository, _, revision = source.removeprefix(HUB_PREFIX).partition("@")
    from huggingface_hub import HfApi, try_to_load_from_cache

    try:
        if try_to_load_from_cache(repository, PROMPTS_FILE, revision=revision or None) is None:
            check_hub()
        return Path(HfApi().hf_hub_download(repository, PROMPTS_FILE, revision=revision or None))
    except Exception as error:  # the hub's client raises errors of many packages
        raise UserError(f"{source} could not be loaded: {hub_problem(error)}") from error


def hub_problem(error: Exception) -> str:
    """Format the hub's own message in one line, with advice if the token is the cause."""
    message = " ".join(str(error).split()) or type(error).__name__
    status = getattr(getattr(error, "response", None), "status_code", None)
    return f"{message} {SIGN_IN}" if status in (401, 403) else message


def make_method(path: Path, model: Mapping[str, Any], clip: CLIPSpec | CLIP | str | None = None) -> FederatedModule:
    """Create a file's untrained method by importing its trusted class; ``clip`` replaces the file's CLIP.

    Raises:
        UserError: If the class is not a method, is not installed, or does not accept the options.
    """
    class_path = model["class_path"]
    module, _, name = class_path.rpartition(".")
    try:
        kind: Any = getattr(fedvlp if is_own_class(class_path) else import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"{path} needs {class_path!r}, which is not installed. Install it.") from error
    if not (isinstance(kind, type) and issubclass(kind, FederatedModule)):
        raise UserError(f"{path} names {class_path!r}, which is not a method. Pass a file that a run wrote.")
    try:
        options = {**model["init_args"], "clip": clip or CLIPSpec(**model["init_args"]["clip"])}
        return kind(**options)
    except (TypeError, KeyError) as error:
        raise UserError(
            f"{path} has options that this version of {kind.__name__} does not support: {error}. Use the version of "
            "fedvlp that wrote the file."
        ) from error
