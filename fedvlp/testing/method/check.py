"""All checks of a method, and the function that carries them out."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.core.module import FederatedModule
from fedvlp.testing.failures import ContractError, require
from fedvlp.testing.images import write_images
from fedvlp.testing.method import exchange_checks, training_checks, use_checks
from fedvlp.testing.method.runs import MethodContract, small_run
from fedvlp.utils.config_files import CONFIG_OPTION, find_config

METHOD_CHECKS: tuple[Callable[[MethodContract], None], ...] = (
    training_checks.trains_its_tensors_and_nothing_of_clip,
    training_checks.a_resumed_run_equals_an_unbroken_one,
    training_checks.order_of_clients_and_global_generator_do_not_matter,
    training_checks.takes_part_of_the_clients,
    training_checks.a_plain_trainer_trains_it,
    exchange_checks.only_what_a_phase_uploads_is_sent,
    exchange_checks.communication_is_what_was_sent_and_what_cost_says,
    use_checks.prepared_constants_give_the_same_as_images,
    use_checks.a_deployed_file_scores_the_same,
    use_checks.it_describes_itself_in_json,
)


def check_method(kind: type[FederatedModule], config: str | Path | None = None, arguments: Sequence[str] = ()) -> None:
    """Trains a method a few times on made-up images and the tiny CLIP, and checks what every method must keep to.

    A resumed run equals an unbroken one; the order of clients does not matter; only what a phase uploads is sent; and
    more. It takes some seconds, and writes into a temporary folder.

    Args:
        kind: The method.
        config: A config of it, by its path or by its name; its options are the defaults if not given.
        arguments: More arguments of the command line, such as ``--model.prompt_length=4``.

    Raises:
        ContractError: if it does not keep to something; with all that it does not keep to.
        UserError: if it can't be trained at all; or what the method raises itself.
    """
    require(isinstance(kind, type) and issubclass(kind, FederatedModule), f"Expected a FederatedModule, got {kind!r}.")
    chosen = f"--model={kind.__module__}.{kind.__qualname__}"
    method = [chosen if config is None else CONFIG_OPTION + find_config(str(config))]
    problems = []
    with TemporaryDirectory(prefix="fedvlp-contract-") as name:
        folder = Path(name)
        images = write_images(folder / "images")
        contract = MethodContract(partial(_made, kind, images, folder, [*method, *arguments]), folder)
        _ = contract.whole  # what can't be made or trained is said once, and not by every check
        for check in METHOD_CHECKS:
            try:
                check(contract)
            except ContractError as error:
                problems.append(str(error))
    require(not problems, "\n".join(problems))


def _made(kind: type, images: Path, folder: Path, method: Sequence[str], *arguments: str) -> FederationCLI:
    """Returns a run of the method; what the command line refuses is said as a failure."""
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            run = small_run(images, folder, method, *arguments)
    except SystemExit as error:
        raise ContractError(f"{kind.__name__} can't be made as `fedvlp fit` makes it: {said.getvalue()}") from error
    found = type(run.model)
    require(found is kind, f"Expected a config of {kind.__name__}; it is of {found.__module__}.{found.__name__}.")
    return run
