"""The federation loop: for each round, for each phase, train the cohort and aggregate. No method is named here."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger

from fedvlp.callbacks import ProgressBar, TensorBoardLogger
from fedvlp.callbacks import default_callbacks as make_default_callbacks
from fedvlp.core.balance import describe_balance
from fedvlp.core.module import FederatedModule, check_phases
from fedvlp.core.phases import with_aggregation
from fedvlp.core.protocols import FederatedData
from fedvlp.core.roles import BASELINES, REPORTED, BaselineName
from fedvlp.core.state import RunState, ServerState, State
from fedvlp.data.domain_folders import label_by_folders
from fedvlp.data.files.images import image_batches, image_paths
from fedvlp.data.module import check_class_names
from fedvlp.runs.descriptions import describe_run, load_deployed_to_all, load_trained, run_name
from fedvlp.runs.run_folder import describe_choice, files_of_runs, run_of
from fedvlp.training import setup
from fedvlp.training.callback import RunView
from fedvlp.training.distributed import on_every_process
from fedvlp.training.engine import Engine, LocalEngine
from fedvlp.training.evaluation import filter_roles
from fedvlp.training.fit_loop import train_rounds
from fedvlp.training.lightning_hooks import Hooks, check_callbacks
from fedvlp.training.local_training import LocalTraining
from fedvlp.training.options import Clients, RunOptions, Runtime, Server, check_clients
from fedvlp.training.prediction import predict_images, without_validation, write_folder_scores, write_scores
from fedvlp.training.privacy_accounting import privacy_account
from fedvlp.training.secure_sum import with_secure_sum
from fedvlp.training.task import check_add_ons
from fedvlp.utils.errors import UserError, check_range, check_ranges, escape_control_chars
from fedvlp.utils.files import check_replaceable
from fedvlp.utils.ranges import Names, NonNegativeInt, PositiveInt, Seed


class Federation(RunView):
    """Simulates the server and all clients with one copy of the method, whose small state is swapped in and out.

    Every random draw depends on (seed, round, phase, client) alone, so a resumed run equals an unbroken one, and
    neither the order of the clients nor the number of workers or devices changes a result.

    Args:
        rounds: Number of communication rounds.
        local: How a client trains in each round.
        server: What the server does with the clients' updates.
        clients: Which clients take part, and what becomes of those that fail.
        seed: Fixes every random draw. The command line takes it from ``seed_everything``.
        name: Name of the run; made of method, data and held-out domains if not given.
        baselines: Rows next to the method in tables: ``zero_shot`` for CLIP without training, ``class_means`` for the
            mean feature of each class's training images, where features are cached. They never select anything.
        evaluate_every: Evaluate after every so many rounds, and after the last.
        accelerator: Lightning's name of the hardware: ``auto``, ``cpu``, ``gpu`` ...
        devices: How many devices, or which. Several devices train different clients at the same time.
        precision: Of the frozen towers' arithmetic; prompts, optimizers and averages stay in float32. ``bf16-mixed``
            rounds their large weights to bfloat16; ``auto`` does so where the hardware multiplies these faster.
        default_root_dir: Folder under which ``<name>/<time>`` becomes the run's folder.
        enable_progress_bar: Show a live bar for each round.
        fast_dev_run: Try everything once, in 1 round with 1 step a client and 1 batch a split, and keep nothing of it.
        num_nodes: How many machines, each with as many devices; ``torchrun`` starts the processes.
        strategy: Lightning's name of the strategy that starts several processes: ``ddp``, or ``auto`` for it.
        deterministic: Let PyTorch refuse operations that may differ from one run to the next, for the rest of the
            process; needed on a GPU only.
        logger: One or more Lightning loggers, such as ``TensorBoardLogger`` or ``WandbLogger``; none by default. One
            that fails is left out for the rest of the run and never stops it.
        callbacks: Lightning or fedvlp callbacks besides the default ones, such as ``EarlyStopping`` or ``Timer``.
        runtime: What the program uses of the machine and writes of itself; changes no result but by rounding.
    """

    def __init__(  # noqa: PLR0913 (each argument is an option of the command line, as with Lightning's Trainer)
        self,
        rounds: NonNegativeInt = 15,
        local: LocalTraining = LocalTraining(),
        server: Server = Server(),
        clients: Clients = Clients(),
        seed: Seed = 0,
        name: str | None = None,
        baselines: Sequence[BaselineName] = ("zero_shot", "class_means"),
        evaluate_every: PositiveInt = 1,
        accelerator: str = "auto",
        devices: int | str | list[int] = "auto",
        precision: setup.Precision = "32-true",
        default_root_dir: str = "runs",
        enable_progress_bar: bool = True,
        fast_dev_run: bool = False,
        num_nodes: PositiveInt = 1,
        strategy: str = "auto",
        deterministic: bool = False,
        logger: TensorBoardLogger | Logger | list[TensorBoardLogger | Logger] | None = None,
        callbacks: Callback | list[Callback] | None = None,
        runtime: Runtime = Runtime(),
    ) -> None:
        # The command line has checked the ranges; a caller in Python has not.
        check_range("rounds", rounds, NonNegativeInt)
        check_range("evaluate_every", evaluate_every, PositiveInt)
        check_range("seed", seed, Seed)
        for group in (server, clients, runtime):
            check_ranges(group)
        if wrong := [name for name in baselines if name not in BASELINES]:
            raise UserError(f"Expected baselines among {', '.join(BASELINES)}; got {wrong[0]!r}.")
        if fast_dev_run:
            rounds = min(rounds, 1)
            local = replace(local, epochs=1, steps=1)
            # Nothing is to remain on disk or in a service.
            clients = replace(clients, personal_on_disk=False)
            logger = None
        self.runtime = runtime
        self.name = name
        self.baselines = baselines
        self.evaluate_every = evaluate_every
        self.deterministic = deterministic
        self.fast_dev_run = fast_dev_run
        self.default_root_dir = Path(default_root_dir)
        # Replaced by sites, which train and measure elsewhere.
        self.engine: Engine = LocalEngine(clients.personal_on_disk)
        self.callbacks = [callbacks] if isinstance(callbacks, Callback) else list(callbacks or [])
        if runtime.default_callbacks:
            # After those of the user, so that the files hold what these add to the metrics.
            progress = [ProgressBar(enable_progress_bar)]
            self.callbacks += progress if fast_dev_run else make_default_callbacks(enable_progress_bar)
        self.fabric = setup.make_fabric(
            accelerator=accelerator,
            devices=devices,
            num_nodes=num_nodes,
            strategy=strategy,
            precision=precision,
            loggers=logger or [],
            collective_timeout=runtime.collective_timeout,
        )
        precision_used = self.fabric.strategy.precision.precision
        self.options = RunOptions(rounds, seed, precision_used, local, server, clients)
        self.folder = None
        self.run_state = RunState(ServerState.start({}))
        self.description = {}

    def add_callback(self, callback: Callback) -> None:
        """Add a Lightning or fedvlp callback, whose hooks are called after those of all others."""
        self.callbacks.append(callback)

    def fit(self, model: FederatedModule, datamodule: FederatedData, ckpt_path: str | None = None) -> ServerState:
        """Train a method on all source clients, round by round, and return the server's last state.

        Args:
            model: the method; its tensors are what round one starts from, and in the end the deployed ones.
            datamodule: clients and splits.
            ckpt_path: Resume from this checkpoint or run folder; ``last`` takes the newest run of the same name, and
                starts from scratch if there is none.
        """
        # Not in the constructor: a config of `fit` can be tested and verified whatever its callbacks.
        check_callbacks(self.callbacks)
        self.prepare(model, datamodule)
        check_callbacks(self.callbacks, [split.name for split in datamodule.evaluation_splits()])
        train = partial(train_rounds, self, Hooks(self.callbacks, self, model))
        if not self.fast_dev_run:
            checkpoint = None if ckpt_path is None else self._checkpoint(ckpt_path)
            return train(self._checkpoint("last"), checkpoint, may_start_fresh=ckpt_path == "last")
        if ckpt_path is not None:
            raise UserError("fast_dev_run starts from scratch and keeps nothing. Leave ckpt_path out.")
        self.data = setup.with_short_splits(datamodule)
        self.fabric.print(setup.FAST_DEV_RUN_NOTICE, flush=True)
        with TemporaryDirectory(prefix="fedvlp-") as folder:
            state = train(Path(folder), None)
        self.folder = None
        return state

    def validate(
        self, model: FederatedModule, datamodule: FederatedData, ckpt_path: str | None = None
    ) -> dict[str, float]:
        """Measure a trained method on the source validation splits; return accuracies in percent.

        Args:
            model: the method.
            datamodule: clients and splits.
            ckpt_path: A run's ``prompts.safetensors``, a checkpoint, a run folder or ``last``; the model unchanged if
                not given.
        """
        return self._measure(model, datamodule, ckpt_path, ("validation",))

    def test(
        self, model: FederatedModule, datamodule: FederatedData, ckpt_path: str | None = None, output: str | None = None
    ) -> dict[str, float]:
        """Measure a trained method on held-out domains and test splits, or what the protocol measures; return percents.

        Args:
            model: the method.
            datamodule: clients and splits.
            ckpt_path: A run's ``prompts.safetensors``, a checkpoint, a run folder or ``last``; the model unchanged if
                not given.
            output: JSON file to write, of accuracies, other scores and confusions of classes; none if not given.
        """
        if output is not None:
            inputs = [] if ckpt_path is None else [run_of(Path(ckpt_path))]
            check_replaceable(Path(output), files_of_runs(inputs))
        scores = self._measure(model, datamodule, ckpt_path, REPORTED)
        if output is not None and self.is_global_zero:
            about = {"protocol": datamodule.protocol, "accuracy": scores}
            write_scores(Path(output), about, without_validation(self.predictions), datamodule.class_names)
            self.fabric.print(f"written to {output}", flush=True)
        return scores

    def predict(
        self,
        model: FederatedModule,
        images: str | list[str],
        datamodule: Any = None,
        ckpt_path: str | None = None,
        output: str = "predictions.csv",
        class_names: Names | str | None = None,
    ) -> Path:
        """Classify images with a trained method, and write a CSV of path, class and probabilities; return its path.

        Where folders say the classes of all images, ``CLASS/image`` or ``DOMAIN/CLASS/image``, they are scored as well;
        the scores are in a JSON file beside the CSV.

        Args:
            model: the method.
            images: Image files or folders; folders are searched at any depth.
            datamodule: not used; the command line takes the class names from it.
            ckpt_path: A run's ``prompts.safetensors``, a checkpoint or a run folder.
            output: The CSV file to write.
            class_names: Other classes than those that were trained, as a list or as a text file with a name in each
                line; those if not given. A method whose tensors depend on the number of classes refuses them.
        """
        file = Path(output)
        given = [images] if isinstance(images, str) else images
        paths = image_paths(given)
        of_run = [] if ckpt_path is None else [run_of(self._checkpoint(ckpt_path))]
        check_replaceable(file, [*paths, *files_of_runs(of_run)])  # before an image is classified
        self._launch(model)
        if ckpt_path is not None:
            self.fabric.print(describe_choice(self._checkpoint(ckpt_path)), end="", flush=True)
            model.load_state(load_deployed_to_all(self._checkpoint(ckpt_path), model))
        if isinstance(class_names, str):
            class_names = [line for line in Path(class_names).read_text(encoding="utf-8").splitlines() if line]
        if class_names is not None:
            check_class_names(class_names)
            model = model.for_classes(class_names)
        # No client's own part is known for images of no client.
        with model.shared_part_only():
            predictions = predict_images(model, self.fabric, image_batches(paths, model.transform), file)
        self.fabric.print(f"{len(paths)} images -> {file}", flush=True)
        names = model.hparams["class_names"]
        if len(paths) == 1:
            name, probability = names[predictions.predicted.item()], predictions.confidence.item()
            self.fabric.print(escape_control_chars(f"{paths[0]}: {name} ({100 * probability:.1f} %)"), flush=True)
        labelled, others = label_by_folders(predictions, paths, given, names)
        if self.is_global_zero:
            for line in write_folder_scores(file, labelled, names, others):
                self.fabric.print(line, flush=True)
        return file

    def prepare(self, model: FederatedModule, datamodule: FederatedData) -> None:
        """Read the data, check the run, and set its ``phases`` and ``description``; train nothing."""
        # Checks that need no data come first, because encoding the images may take minutes.
        options = self.options
        cohort_size = options.clients.cohort_size
        setup.check_writable(self.default_root_dir)
        setup.check_method(model, options.rounds)
        self._attach(model, datamodule, serves_images=self.fast_dev_run)
        clients = datamodule.clients
        phases = with_aggregation(check_phases(model), options.server.aggregation, clients, cohort_size, options.seed)
        privacy_account(phases, len(clients), cohort_size, self.fabric.world_size)
        setup.check_data(datamodule, cohort_size)
        check_add_ons(model, options.local.all_add_ons, phases, datamodule, options.precision)
        for phase in phases:
            phase.strategy.check(clients)
        check_clients(options, clients)
        if options.server.secure_sum:
            self.options = with_secure_sum(options, phases, len(clients))
        self.phases = phases
        self.description = describe_run(model, datamodule, phases, self.options.describe())

    def _launch(self, model: FederatedModule) -> None:
        self.module = model
        setup.set_up_method(self.fabric, model, self.runtime.num_threads, self.deterministic)

    def _attach(self, model: FederatedModule, datamodule: FederatedData, serves_images: bool = False) -> None:
        """Launches, and has the data read, split and prepared."""
        self._launch(model)
        self.data = datamodule
        datamodule.trainer = self  # as Lightning does: a data module may ask it for the method
        # One machine may lack the images, and the others must not wait for it.
        set_up = partial(setup.set_up_data, self.fabric, model, datamodule, self.options.precision, serves_images)
        on_every_process(self.fabric, set_up)

    def _measure(
        self, model: FederatedModule, datamodule: FederatedData, ckpt_path: str | None, roles: tuple[str, ...]
    ) -> dict[str, float]:
        self._attach(model, datamodule)
        # A method that is measured as it was made has no clients yet that keep anything.
        trained: tuple[State, Mapping[int, State]] = (model.shared_state(), {})
        if ckpt_path is not None:
            self.fabric.print(describe_choice(self._checkpoint(ckpt_path)), end="", flush=True)
            trained = load_trained(self._checkpoint(ckpt_path), model)
        scores = filter_roles(self.evaluate(model, *trained), roles)
        lines = [datamodule.protocol, *(f"{name}: {value:.2f} %" for name, value in scores.items())]
        balance = {name: by_class for name, by_class in self.balance.items() if name in scores}
        self.fabric.print("\n".join([*lines, *describe_balance(balance, "warning: this model")]), flush=True)
        return scores

    def _checkpoint(self, ckpt_path: str) -> Path:
        """The file or folder that a ``ckpt_path`` means; for ``last`` the folder of all runs of this name."""
        if not ckpt_path:
            raise UserError("Expected a file, a folder or last as ckpt_path; got nothing. Leave it out to do without.")
        if ckpt_path != "last":
            return Path(ckpt_path)
        # The newest run below it is found when it is resumed.
        return self.default_root_dir / (self.name or run_name(self.module, self.data))
