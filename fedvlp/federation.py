"""The federation loop: in each phase of each round, train the cohort and aggregate. It works with any method."""

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
from fedvlp.core.metrics import all_scores
from fedvlp.core.module import FederatedModule, check_phases
from fedvlp.core.phases import bind_aggregators
from fedvlp.core.protocols import FederatedData
from fedvlp.core.roles import BASELINES, REPORTED, SELECTION_METRICS, BaselineName, SelectionMetric, selection_column
from fedvlp.core.state import RunState, ServerState, State
from fedvlp.data.class_names import check_class_names, read_class_names
from fedvlp.data.domain_folders import label_by_folders
from fedvlp.data.files.images import image_batches, image_paths
from fedvlp.results.predictions import read_predictions
from fedvlp.results.record import LAST_ROW
from fedvlp.runs.descriptions import describe_run, load_deployed_to_all, load_trained, run_name
from fedvlp.runs.run_folder import describe_choice, find_run_folder, list_run_files
from fedvlp.training import prediction, setup
from fedvlp.training.callback import RunView
from fedvlp.training.distributed import on_every_process
from fedvlp.training.engine import Engine, LocalEngine
from fedvlp.training.evaluation import filter_roles
from fedvlp.training.fit_loop import train_rounds
from fedvlp.training.lightning_hooks import Hooks, check_callbacks
from fedvlp.training.local_training import LocalTraining
from fedvlp.training.options import Clients, RunOptions, Runtime, Server, check_clients, check_several_labels
from fedvlp.training.privacy_accounting import privacy_account
from fedvlp.training.secure_sum import require_secure_sum
from fedvlp.training.task import check_add_ons
from fedvlp.utils.errors import UserError, check_range, check_ranges, escape_control_chars
from fedvlp.utils.files import check_replaceable
from fedvlp.utils.ranges import Names, NonNegativeInt, PositiveInt, Seed


class Federation(RunView):
    """Server and all clients, simulated with one copy of the method by swapping their small states in and out.

    Every random draw depends only on seed, round, phase and client. A resumed run therefore equals an uninterrupted
    one, and the order of clients and the number of workers or devices change no result.

    Hold out pixel art, train one prompt on icons in five other styles, and classify images of your own::

        data = IconDomains(held_out="pixel")
        method = PromptFL(class_names=data.class_names, clip="fedvlp-small")
        federation = Federation(rounds=3)
        federation.fit(method, data)
        federation.predict(method, "my_images")  # writes predictions.csv

    Args:
        rounds: Number of communication rounds.
        local: How a client trains in each round.
        server: How the server checks and combines the clients' updates.
        clients: Which clients take part in a round, and how to handle failing clients.
        seed: Fixes every random draw. The command line takes it from ``seed_everything``.
        name: Name of the run; built from method, data and held-out domains if not given.
        baselines: Baselines shown next to the method in tables: ``zero_shot`` for untrained CLIP, ``class_means`` for
            the mean feature of each class's training images, if features are cached. They never select anything.
        evaluate_every: Number of rounds between evaluations. The last round is always evaluated.
        select: Metric on source validation that selects the best round and the trial of ``fedvlp tune``.
        accelerator: Lightning's name of the hardware: ``auto``, ``cpu``, ``gpu`` ...
        devices: Number or indices of devices. Several devices train different clients at the same time.
        precision: Precision of the frozen towers; prompts, optimizers and averages stay in float32. ``bf16-mixed``
            rounds the towers' large weights to bfloat16; ``auto`` does so if the hardware multiplies bfloat16 faster.
        default_root_dir: Folder in which runs are stored, as ``<name>/<time>``.
        enable_progress_bar: Show a live bar for each round.
        fast_dev_run: Try everything with 1 round, 1 step per client and 1 batch per split, and save nothing.
        num_nodes: Number of machines, each with the same number of devices; ``torchrun`` starts the processes.
        strategy: Lightning's name of the strategy that starts several processes: ``ddp``, or ``auto`` for it.
        deterministic: Make PyTorch raise an error for operations that may differ between runs, for the rest of the
            process; only needed on a GPU.
        logger: One or more Lightning loggers, such as ``TensorBoardLogger`` or ``WandbLogger``; none by default. A
            failing logger is disabled for the rest of the run and never stops it.
        callbacks: Lightning or fedvlp callbacks besides the default ones, such as ``EarlyStopping`` or ``Timer``.
        runtime: Threads, timeouts and output of the program. They change results only by rounding.
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
        select: SelectionMetric = "accuracy",
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
        # The command line has checked the ranges, but a Python caller has not.
        check_range("rounds", rounds, NonNegativeInt)
        check_range("evaluate_every", evaluate_every, PositiveInt)
        check_range("seed", seed, Seed)
        for group in (server, clients, runtime):
            check_ranges(group)
        if unknown := [name for name in baselines if name not in BASELINES]:
            raise UserError(f"Expected baselines among {', '.join(BASELINES)}; got {unknown[0]!r}.")
        if select not in SELECTION_METRICS:
            raise UserError(f"Expected select among {', '.join(SELECTION_METRICS)}; got {select!r}.")
        if fast_dev_run:
            rounds = min(rounds, 1)
            local = replace(local, epochs=1, steps=1)
            # Nothing may remain on disk or in a logging service.
            clients = replace(clients, personal_on_disk=False)
            logger = None
        self.runtime = runtime
        self.name = name
        self.baselines = baselines
        self.evaluate_every = evaluate_every
        self.deterministic = deterministic
        self.fast_dev_run = fast_dev_run
        self.default_root_dir = Path(default_root_dir)
        # A run over sites replaces the engine, because sites train and evaluate elsewhere.
        self.engine: Engine = LocalEngine(clients.personal_on_disk)
        self.callbacks = [callbacks] if isinstance(callbacks, Callback) else list(callbacks or [])
        if runtime.default_callbacks:
            # After the user's callbacks, so that the files include the metrics that these add.
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
        self.options = RunOptions(rounds, seed, precision_used, local, server, clients, select)
        self.folder = None
        self.run_state = RunState(ServerState.start({}))
        self.description = {}

    def add_callback(self, callback: Callback) -> None:
        """Add a Lightning or fedvlp callback. Its hooks are called after all others."""
        self.callbacks.append(callback)

    def fit(self, model: FederatedModule, datamodule: FederatedData, ckpt_path: str | None = None) -> ServerState:
        """Train a method on all source clients, round by round, and return the server's final state.

        Args:
            model: The method. Training starts from its tensors; afterwards it holds the deployed tensors.
            datamodule: Clients and splits.
            ckpt_path: Checkpoint or run folder to resume from; ``last`` resumes the newest run of the same name, or
                starts from scratch if there is none.
        """
        # Not in the constructor, because `test` and `verify` ignore the callbacks of a config of `fit`.
        check_callbacks(self.callbacks)
        self.prepare(model, datamodule)
        splits = (split.name for split in datamodule.evaluation_splits())
        check_callbacks(
            self.callbacks, [*splits, "validation", "validation_loss", selection_column(self.options.select)]
        )
        train = partial(train_rounds, self, Hooks(self.callbacks, self))
        if not self.fast_dev_run:
            checkpoint = None if ckpt_path is None else self._checkpoint(ckpt_path)
            return train(self._checkpoint("last"), checkpoint, may_start_fresh=ckpt_path == "last")
        if ckpt_path is not None:
            raise UserError("fast_dev_run starts from scratch and saves nothing. Remove ckpt_path.")
        self.data = setup.shorten_splits(datamodule)
        self.fabric.print(setup.FAST_DEV_RUN_NOTICE, flush=True)
        with TemporaryDirectory(prefix="fedvlp-") as folder:
            state = train(Path(folder), None)
        self.folder = None
        return state

    def validate(
        self, model: FederatedModule, datamodule: FederatedData, ckpt_path: str | None = None
    ) -> dict[str, float]:
        """Evaluate a trained method on the source validation splits; return accuracies in percent.

        Args:
            model: The method.
            datamodule: Clients and splits.
            ckpt_path: A run's ``prompts.safetensors``, a checkpoint, a run folder or ``last``; if None, the model is
                evaluated as is.
        """
        return self._measure(model, datamodule, ckpt_path, ("validation",))

    def test(
        self, model: FederatedModule, datamodule: FederatedData, ckpt_path: str | None = None, output: str | None = None
    ) -> dict[str, float]:
        """Evaluate a trained method on the protocol's held-out domains and test splits; return accuracies in percent.

        Args:
            model: The method.
            datamodule: Clients and splits.
            ckpt_path: A run's ``prompts.safetensors``, a checkpoint, a run folder or ``last``; if None, the model is
                evaluated as is.
            output: JSON file for accuracies, other scores and confusions of classes; None to write no file.
        """
        if output is not None:
            inputs = [] if ckpt_path is None else [find_run_folder(Path(ckpt_path))]
            check_replaceable(Path(output), list_run_files(inputs))
        scores = self._measure(model, datamodule, ckpt_path, REPORTED)
        class_names = datamodule.class_names
        reported = prediction.reported_predictions(self.predictions, datamodule)
        if len(class_names) == 2 or self.has_several_labels:
            self.fabric.print(*prediction.describe_scores(all_scores(reported, class_names)), sep="\n", flush=True)
        if output is not None and self.is_global_zero:
            header = {"protocol": datamodule.protocol, "accuracy": scores}
            prediction.write_scores(Path(output), header, reported, class_names)
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

        For several labels per image, the CSV has the labels that reach their thresholds, separated by ``|``. Otherwise,
        if all images are in class folders, ``CLASS/image`` or ``DOMAIN/CLASS/image``, the predictions are also scored.
        The scores are written to a JSON file next to the CSV.

        Args:
            model: The method.
            images: Image files or folders, which are searched recursively.
            datamodule: Not used; the command line takes the class names from it.
            ckpt_path: A run's ``prompts.safetensors``, a checkpoint or a run folder.
            output: The CSV file to write.
            class_names: Names of the classes to choose from, as a list or as a text file with one name per line; by
                default the classes of training. Methods with parameters that depend on the classes raise an error.
        """
        file = Path(output)
        inputs = [images] if isinstance(images, str) else images
        paths = image_paths(inputs)
        runs = [] if ckpt_path is None else [find_run_folder(self._checkpoint(ckpt_path))]
        check_replaceable(file, [*paths, *list_run_files(runs)])  # before classifying images
        self._launch(model)
        if ckpt_path is not None:
            self.fabric.print(describe_choice(self._checkpoint(ckpt_path)), end="", flush=True)
            model.load_state(load_deployed_to_all(self._checkpoint(ckpt_path), model))
        if isinstance(class_names, str):
            class_names = read_class_names(class_names)
        if class_names is not None:
            check_class_names(class_names)
            model = model.for_classes(class_names)
        # The images belong to no client, so there are no personal tensors for them.
        with model.shared_part_only():
            predictions = prediction.predict_images(model, self.fabric, image_batches(paths, model.transform), file)
        self.fabric.print(f"{len(paths)} images -> {file}", flush=True)
        names = model.label_names
        if len(paths) == 1:
            line = f"{paths[0]}: {prediction.describe_prediction(predictions, names)}"
            self.fabric.print(escape_control_chars(line), flush=True)
        # Folders name one class, not several labels.
        folders = [] if model.has_several_labels else inputs
        labelled, others = label_by_folders(predictions, paths, folders, names)
        splits = read_predictions(runs[0]).get(LAST_ROW, {}).values() if runs and class_names is None else ()
        # All splits of the training classes have the same threshold.
        for positive, threshold in {(split.positive, split.threshold) for split in splits if not split.class_names}:
            for domain, each in labelled.items():
                labelled[domain] = replace(each, positive=positive, threshold=threshold)
        if self.is_global_zero:
            for line in prediction.write_folder_scores(file, labelled, names, others):
                self.fabric.print(line, flush=True)
        return file

    def prepare(self, model: FederatedModule, datamodule: FederatedData) -> None:
        """Read the data, check the run, and set its ``phases`` and ``description``, without training."""
        # Checks without data come first, because encoding the images may take minutes.
        options = self.options
        cohort_size = options.clients.cohort_size
        setup.check_writable(self.default_root_dir)
        setup.check_method(model, options.rounds)
        model.calibration_temperature, model.label_thresholds = 1.0, ()  # training makes earlier ones obsolete
        if getattr(datamodule, "several_labels", False):
            check_several_labels(options)
        self._attach(model, datamodule, serves_images=self.fast_dev_run)
        clients = datamodule.clients
        phases = bind_aggregators(check_phases(model), options.server.aggregation, clients, cohort_size, options.seed)
        privacy_account(phases, len(clients), cohort_size, self.fabric.world_size)
        setup.check_data(datamodule, cohort_size)
        check_add_ons(model, options.local.all_add_ons, phases, datamodule, options.precision)
        for phase in phases:
            phase.strategy.check(clients)
        check_clients(options, clients)
        if options.server.secure_sum:
            self.options = require_secure_sum(options, phases, len(clients))
        self.phases = phases
        self.description = describe_run(model, datamodule, phases, self.options.describe())

    def _launch(self, model: FederatedModule) -> None:
        self.module = model
        setup.set_up_method(self.fabric, model, self.runtime.num_threads, self.deterministic)

    def _attach(self, model: FederatedModule, datamodule: FederatedData, serves_images: bool = False) -> None:
        self._launch(model)
        self.data = datamodule
        datamodule.trainer = self  # as in Lightning, so that a data module can find the method
        # If one machine lacks the images, the others must not wait for it.
        set_up = partial(setup.set_up_data, self.fabric, model, datamodule, self.options.precision, serves_images)
        on_every_process(self.fabric, set_up)

    def _measure(
        self, model: FederatedModule, datamodule: FederatedData, ckpt_path: str | None, roles: tuple[str, ...]
    ) -> dict[str, float]:
        self._attach(model, datamodule)
        # Without a checkpoint no client has personal tensors yet.
        trained: tuple[State, Mapping[int, State]] = (model.shared_state(), {})
        if ckpt_path is not None:
            self.fabric.print(describe_choice(self._checkpoint(ckpt_path)), end="", flush=True)
            trained = load_trained(self._checkpoint(ckpt_path), model)
        scores = filter_roles(self.evaluate(model, *trained), roles)
        unit = "% mAP" if self.has_several_labels else "%"
        lines = [datamodule.protocol, *(f"{name}: {value:.2f} {unit}" for name, value in scores.items())]
        balance = {name: by_class for name, by_class in self.balance.items() if name in scores}
        self.fabric.print("\n".join([*lines, *describe_balance(balance, "warning: this model")]), flush=True)
        return scores

    def _checkpoint(self, ckpt_path: str) -> Path:
        """Resolve ``ckpt_path`` to a file or folder; ``last`` becomes the folder of all runs of this name."""
        if not ckpt_path:
            raise UserError("Expected a file, a folder or last as ckpt_path; got an empty path. Remove the option.")
        if ckpt_path != "last":
            return Path(ckpt_path)
        # Resuming then finds the newest run in this folder.
        return self.default_root_dir / (self.name or run_name(self.module, self.data))
