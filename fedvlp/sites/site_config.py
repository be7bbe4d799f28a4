"""What a site decides for itself: ``site.yaml`` in its home folder."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from jsonargparse import ArgumentError, ArgumentParser

from fedvlp.sites.policy import Policy
from fedvlp.utils.config_files import read_yaml
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import NonNegativeInt, PositiveFloat, PositiveInt

FILE = "site.yaml"


@dataclass(frozen=True)
class SiteConfig:
    """A site's own options; the server knows none of them but the name.

    Attributes:
        name: under which the server lists the site, and which its domain has.
        root: folder with a folder of images for each class; relative to the site's home unless absolute.
        cache_dir: folder for features and decoded images; None keeps nothing on disk.
        accelerator: Lightning's name of the hardware.
        num_threads: CPU threads of PyTorch; its own choice if None.
        num_workers: processes that read images; 0 reads them in the main process.
        on_bad_image: what to do if images can't be read: ``error`` refuses to train, ``skip`` leaves them out.
        pretrained: the file of CLIP's weights, where the server's name for them means nothing here.
        secure_sum: folder of ``key`` and ``roster.yaml``, to train only for secure sums; None sends updates.
        idle_minutes: after so many minutes without a request the warm process ends.
        allow: modules and classes that a server's config may name, besides fedvlp's own, and CLIPs of hubs and folders,
            such as ``hf-hub:organisation/model``. To import a class runs its code.
        policy: which runs the site takes part in, and what of them may leave it.
    """

    name: str
    root: str
    cache_dir: str | None = "cache"
    accelerator: str = "auto"
    num_threads: PositiveInt | None = None
    num_workers: NonNegativeInt = 0
    on_bad_image: Literal["error", "skip"] = "error"
    pretrained: str | None = None
    secure_sum: str | None = None
    idle_minutes: PositiveFloat = 30.0
    allow: list[str] = field(default_factory=list)
    policy: Policy = field(default_factory=Policy)


def read_site_config(home: Path) -> SiteConfig:
    """Reads the config of a site from its folder.

    Raises:
        UserError: if there is none, or an option is unknown, missing or out of range.
    """
    path = home / FILE
    if not path.is_file():
        raise UserError(f"Expected {FILE} in {home}, which makes a folder a site's home. Write one with name and root.")
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"Expected options such as name and root in {path}; found none.")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(SiteConfig, "site")
    try:
        config: SiteConfig = parser.instantiate(parser.parse_object({"site": content})).site
    except ArgumentError as error:
        raise UserError(f"{path} can't be used: {' '.join(str(error).split())}") from error
    # A split of the site is called <role>/<name>, in tables and on the wire.
    if not config.name.strip() or not config.name.isprintable() or "/" in config.name:
        raise UserError(f"Expected name of a site without slashes and control characters, got {config.name!r}.")
    # Relative paths are the home's, wherever the process was started.
    here = home.resolve()
    cache_dir = None if config.cache_dir is None else str(here / Path(config.cache_dir).expanduser())
    secure_sum = None if config.secure_sum is None else str(here / Path(config.secure_sum).expanduser())
    rules = replace(config.policy, signers=[str(here / Path(key).expanduser()) for key in config.policy.signers])
    config = replace(config, secure_sum=secure_sum, policy=rules)
    return replace(config, root=str(here / Path(config.root).expanduser()), cache_dir=cache_dir)
