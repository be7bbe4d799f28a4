"""A site's own options: ``site.yaml`` in its home folder."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt, ValidationError

from fedvlp.sites.policy import Policy
from fedvlp.sites.wire import Schema
from fedvlp.utils.config_files import read_yaml
from fedvlp.utils.errors import UserError, did_you_mean_or_choose

FILE = "site.yaml"


def _check_name(name: str) -> str:
    # A split of the site is called <role>/<name>, in tables and on the wire.
    if not name.strip() or not name.isprintable() or "/" in name:
        raise ValueError("Input should be a name without slashes and control characters")
    return name


class SiteConfig(Schema):
    """A site's own options. The server knows only the site's name.

    Attributes:
        name: Name of the site and its domain in the server's list.
        root: Folder with a folder of images for each class; relative to the site's home unless absolute.
        table: Table of the images, instead of class folders; ``root`` is then the folder of its paths, by default its
            own folder.
        several_labels: Whether an image may have several labels or none; see ``ImageTable``.
        group: Regular expression that finds the patient or camera in an image's name; see ``ListedImages``.
        cache_dir: Folder for features and decoded images; None stores nothing on disk.
        accelerator: Lightning's name of the hardware.
        num_threads: CPU threads of PyTorch; None uses PyTorch's default.
        num_workers: Processes that read images; 0 reads them in the main process.
        on_bad_image: How to handle unreadable images: ``error`` refuses to train, ``skip`` ignores the images.
        pretrained: File of CLIP's weights, if this site cannot load them by the server's name.
        secure_sum: Folder with ``key`` and ``roster.yaml``, to train only for secure sums; None sends updates.
        allow: Modules and classes that a server's config may name in addition to fedvlp's own, and CLIPs from hubs and
            folders, such as ``hf-hub:organisation/model``. Importing a class runs its code.
        policy: Rules for the runs that the site joins and the data that may leave it.
    """

    name: Annotated[str, AfterValidator(_check_name)]
    root: str | None = None
    table: str | None = None
    several_labels: bool = False
    group: str | None = None
    cache_dir: str | None = "cache"
    accelerator: str = "auto"
    num_threads: PositiveInt | None = None
    num_workers: NonNegativeInt = 0
    on_bad_image: Literal["error", "skip"] = "error"
    pretrained: str | None = None
    secure_sum: str | None = None
    allow: list[str] = Field(default_factory=list)
    policy: Policy = Policy()


def read_site_config(home: Path) -> SiteConfig:
    """Read a site's config from its folder; raise UserError if it is missing, or an option is wrong or missing."""
    path = home / FILE
    if not path.is_file():
        raise UserError(f"Expected the site's options in {home / FILE}, found no file. Write one with name and root.")
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"Expected options such as name and root in {path}; found none.")
    try:
        config = SiteConfig.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{path} can't be used: {_describe(error)}") from error
    if config.root is None and config.table is None:
        raise UserError(f"{path} can't be used: it names no images. Add root, a folder of class folders, or table.")
    folder = home.resolve()
    values = {name: getattr(config, name) for name in ("root", "table", "cache_dir", "secure_sum")}
    paths = {name: str(folder / Path(value).expanduser()) for name, value in values.items() if value is not None}
    signers = [str(folder / Path(key).expanduser()) for key in config.policy.signers]
    policy = config.policy.model_copy(update={"signers": signers})
    return config.model_copy(update={**paths, "policy": policy})


def _describe(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    location = problem["loc"]
    option = ".".join(map(str, location))
    if problem["type"] == "missing":
        return f"it lacks the option {option}. Add it."
    if problem["type"] == "extra_forbidden":
        options = (Policy if location[0] == "policy" else SiteConfig).model_fields
        return f"there is no option {option}. {did_you_mean_or_choose(str(location[-1]), options)}"
    expected = problem["msg"].removeprefix("Value error, ")
    return f"{option}: {expected}, found {problem['input']!r}. Correct it."
