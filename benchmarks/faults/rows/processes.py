"""Faults of processes: ranks, clients that end the process, and the server."""

from __future__ import annotations

import socket

from benchmarks.faults.bench import Bench, quote
from benchmarks.faults.commands import Running
from benchmarks.faults.fault import fault
from benchmarks.faults.runs import checkpoints
from benchmarks.faults.workshop import CLASSES, DOMAINS, FAULTY
from benchmarks.synthetic import write_images


def ranks(
    bench: Bench, *options: str, method: str = "promptfl", roots: tuple[str, str] | None = None, nodes: int = 1
) -> list[Running]:
    """Start two processes of one run, like ``torchrun``.

    Args:
        bench: Bench of the row.
        *options: Options of the run.
        method: Name of the method's config.
        roots: Image folders of the two processes, if they differ.
        nodes: Number of machines that they report.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spread = (f"--trainer.devices={2 // nodes}", f"--trainer.num_nodes={nodes}", "--trainer.strategy=ddp")
    started = []
    for rank in range(2):
        environment = {
            "TORCHELASTIC_RUN_ID": "faults",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": "2",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank if nodes == 1 else 0),
            "GROUP_RANK": str(rank if nodes > 1 else 0),
            "LOCAL_WORLD_SIZE": str(2 // nodes),
        }
        own = () if roots is None else (f"--data.root={roots[rank]}",)
        started.append(bench.start_fit(*spread, *options, *own, method=method, environment=environment))
    return started


@fault(
    injected="two machines run one command, the second with other images",
    must="both end before training, and report that their data differ",
    peers="–",
)
def different_images(bench: Bench) -> None:
    """Remove one image of each class for the second process."""
    other = bench.folder / "images"
    write_images(other, DOMAINS, list(CLASSES), 15, size=48)
    started = ranks(bench, roots=(str(bench.shop.images), str(other)), nodes=2)
    for rank, running in enumerate(started):
        finished = bench.finish(running, 90)
        bench.expect(finished.code not in (0, -9), f"rank {rank}: exit code {finished.code}")
        bench.expect(not finished.has_traceback, f"rank {rank}: a traceback")
        bench.note(f"rank {rank}: {quote(finished.error, 120) or 'no error line'}")
        bench.expect("have different images" in finished.error, f"rank {rank}: the difference is not reported")
    trained = list((bench.folder / "runs").rglob("round-*.safetensors"))
    bench.expect(not trained, "rounds were trained")
    if trained:
        bench.lose("the result belongs to other clients than the tables report")


@fault(
    injected="a client's code ends the process at once (`os._exit`), like when memory runs out",
    must="a nonzero exit code, and the resumed run equals an uninterrupted one",
    peers="Flower 1.41: round 1 has 1 result, round 2 has none, the model stays at round 1, exit 0.",
)
def client_exits(bench: Bench) -> None:
    """End the process in round 2."""
    expected, _ = bench.shop.uninterrupted("promptfl", *FAULTY)
    finished = bench.fit(*FAULTY, faults={"2": "exit"})
    bench.expect(finished.code == 9, f"exit code {finished.code}")
    bench.expect_success(bench.fit(*FAULTY, "--ckpt_path=last"), "the resumed run")
    if bench.expect_same(bench.run(), expected):
        bench.note("the process ended in round 2; the next run resumed from round 1 and equals an uninterrupted one")


@fault(
    injected="the server's code raises an error in round 2",
    must="a nonzero exit code; the finished round is kept, and the resumed run equals an uninterrupted one",
    peers="Flower 1.41: `flwr run` returns 0; only `flwr list` reports the failure.",
)
def server_raises(bench: Bench) -> None:
    """Raise an error in an aggregator."""
    rule = ("--trainer.server.aggregation", "benchmarks.faults.clients.FaultyMean")
    expected, _ = bench.shop.uninterrupted("promptfl", *rule)
    finished = bench.fit(*rule, faults={"2": "server"})
    bench.expect(finished.code not in (0, -9), f"exit code {finished.code}")
    bench.expect("the server's code is wrong" in finished.output, "the error is not shown")
    bench.expect(len(checkpoints(bench.run())) == 1, "round 1 has no checkpoint")
    bench.expect_success(bench.fit(*rule, "--ckpt_path=last"), "the resumed run")
    if bench.expect_same(bench.run(), expected):
        bench.note("its traceback is shown; the next run resumed from round 1 and equals an uninterrupted one")


@fault(
    injected="fewer clients than `min_clients`",
    must="one error line before training",
    peers="Flower 1.41 waits forever, and prints a line per second.",
)
def too_few_clients(bench: Bench) -> None:
    """Request five of three clients."""
    finished = bench.fit("--trainer.server.min_clients=5")
    bench.expect_refusal(finished, "3 clients", "min_clients is 5")
    bench.expect(finished.seconds < 60, "it took too long")
    bench.note(quote(finished.error))


@fault(
    injected="errors in a client, the server, a callback, an image reader and the options, each in a separate run",
    must="no failed run has exit code 0",
    peers="Flower 1.41: exit 0 for 7 of 14 such faults, regardless of the order of replies.",
)
def exit_codes(bench: Bench) -> None:
    """Fail in five ways."""
    root = bench.folder / "empty"
    root.mkdir()
    rule = ("--trainer.server.aggregation", "benchmarks.faults.clients.FaultyMean")
    codes = {
        "clients": bench.fit(*FAULTY, faults={"1": "everyone:raise"}).code,
        "server": bench.fit(*rule, faults={"2": "server"}).code,
        "callback": bench.fit("--trainer.callbacks", "benchmarks.faults.clients.Broken").code,
        "images": bench.fit(f"--data.root={root}").code,
        "options": bench.fit("--trainer.rounds=x").code,
        "unknown command": bench.command("fitt").code,
    }
    zero = [name for name, code in codes.items() if code == 0]
    bench.expect(not zero, f"exit code 0: {zero}")
    bench.note(", ".join(f"{name} {code}" for name, code in codes.items()))
