"""The quickstart up to its first local step: `python -m benchmarks.first_batch FOLDER`."""

from __future__ import annotations

import sys
from typing import Any

from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.training.callback import FederationCallback
from fedvlp.utils.config_files import configs_folder


class StopAfterStep(FederationCallback):
    """Callback that ends the process after the first step."""

    def on_train_batch_end(self, *arguments: Any) -> None:
        """End the process."""
        raise SystemExit(0)


def main(folder: str) -> None:
    """Run with caches and run folder in a folder."""
    given = [f"--config={configs_folder() / 'quickstart.yaml'}", f"--data.cache_dir={folder}/cache"]
    given += [f"--trainer.default_root_dir={folder}/runs", "--trainer.enable_progress_bar=false"]
    command = FederationCLI(run=False, args=given, save_config_callback=None)
    federation: Any = command.trainer
    federation.add_callback(StopAfterStep())
    federation.fit(command.model, command.datamodule)


if __name__ == "__main__":
    main(sys.argv[1])
