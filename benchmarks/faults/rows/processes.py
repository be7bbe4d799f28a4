"""Faults of processes: those of readers, of ranks, of clients that take the process along, and of the server."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress

from benchmarks.faults.bench import Bench, NotBuiltError, quote
from benchmarks.faults.commands import Finished, Running
from benchmarks.faults.fault import fault
from benchmarks.faults.options import COLLECTIVE_LIMIT
from benchmarks.faults.page import CLIENTS, FOUND, PROMISES
from benchmarks.faults.rows.uploads import left_out
from benchmarks.faults.runs import checkpoints, metrics
from benchmarks.faults.workshop import CLASSES, DOMAINS, FAULTY
from benchmarks.synthetic import write_images

READING = ("--data.num_workers=2", "--data.augmentation=crop_flip", "--trainer.rounds=6")
"""Readers that are at work in every round."""
WAIT = 10
"""Seconds that ranks wait for each other."""


def is_unknown(finished: Finished, option: str) -> bool:
    """Whether a command did not know an option."""
    name = option.removeprefix("--").rpartition(".")[2]
    return finished.code == 2 and name in finished.output


def kill_reader(running: Running, bench: Bench, words: str) -> bool:
    """Kills one image reader once a run has written some words; says whether there was one."""
    running.wait_for(words)
    ends = time.monotonic() + 60
    while running.is_alive and time.monotonic() < ends:
        readers = running.children()
        if readers:
            with suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(bench.random.choice(readers), signal.SIGKILL)
                return True
        time.sleep(0.005)
    return False


@fault(
    FOUND,
    6,
    injected="an image reader is killed in a round; in another run one in every round",
    must="readers are started again and the run ends equal to an unbroken one; where they die again and again it is "
    "one line",
    peers="Flower 1.41: an actor that dies goes back into the pool, and the next round has 0 results and 3 failures, "
    "exit 0.",
)
def reader_killed(bench: Bench) -> None:
    """Kills one, and then many."""
    _kill_one_reader(bench)
    victim = bench.start_fit(*READING, "--trainer.name=often", "--trainer.rounds=50")
    kills = 0
    ends = time.monotonic() + 60
    while victim.is_alive and time.monotonic() < ends:
        kills += kill_reader(victim, bench, "round 1/")
        time.sleep(0.05)
    finished = bench.finish(victim, 1)
    bench.expect(not finished.has_traceback, "readers that die again and again: a traceback")
    bench.note(f"{kills} readers killed: exit code {finished.code}, {quote(finished.error, 80) or 'no error line'}")


def _kill_one_reader(bench: Bench) -> None:
    expected, _ = bench.shop.unbroken("promptfl", *READING)
    victim = bench.start_fit(*READING)
    bench.expect(kill_reader(victim, bench, "round 2/"), "no reader was found")
    finished = bench.finish(victim)
    if not bench.expect_success(finished, "the run whose reader was killed"):
        bench.lose("the running round; it can go on")
    elif bench.expect_same(bench.run(), expected):
        bench.note("one reader killed: the run ended, equal to an unbroken one")
    else:
        bench.note(f"one reader killed: {left_out(bench.run())} update left out")


@fault(
    PROMISES,
    3,
    injected="an image reader is killed in mid-round",
    must="it is started again, at most one client is lost, and the next round is complete",
    peers="Flower 1.41: the dead worker stays in the pool, and no later round has results. NVFlare 2.8 has a process "
    "a client and a heartbeat.",
)
def worker_killed(bench: Bench) -> None:
    """Kills one reader, and counts the clients of the rounds."""
    _kill_one_reader(bench)
    rows = metrics(bench.run())
    bench.expect(len(rows) == 6, f"{len(rows)} of 6 rounds are finished")
    bench.note(f"{len(rows)} of 6 rounds finished")


def ranks(
    bench: Bench, *options: str, method: str = "promptfl", roots: tuple[str, str] | None = None, nodes: int = 1
) -> list[Running]:
    """Starts two processes of one run, as ``torchrun`` does.

    Args:
        bench: the row's.
        *options: of the run.
        method: whose config is taken.
        roots: folders of images of both, where they differ.
        nodes: of how many machines they say they are.
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


def stop_second(bench: Bench, number: int, *options: str) -> tuple[Finished, float]:
    """Sends a signal to the second of two ranks in the third round; returns what the first left, and the seconds."""
    first, second = ranks(bench, "--trainer.rounds=2000", *options)
    if not first.wait_for("round 2/"):
        second.kill()
        finished = bench.finish(first, 1)
        if options and is_unknown(finished, options[0]):
            raise NotBuiltError(f"there is no option {options[0].partition('=')[0]}")
        bench.expect(False, f"the ranks never came to round 2: {quote(finished.output[-300:])}")
        return finished, 0.0
    second.signal(number)
    began = time.monotonic()
    finished = bench.finish(first, 4 * WAIT)
    took = time.monotonic() - began
    second.kill()
    bench.finish(second, 1)
    return finished, took


@fault(
    FOUND,
    7,
    injected="the second of two processes of a run is stopped (SIGSTOP); in another run it is killed",
    must=f"within the time limit of {WAIT} s the first ends with one line that has the other's rank, and the run "
    "goes on",
    peers="Flower 1.41: a client that hangs leaves the simulation hanging at its end. NVFlare 2.8: a heartbeat, 600 s.",
)
def rank_stopped(bench: Bench) -> None:
    """Stops and kills."""
    option = f"{COLLECTIVE_LIMIT}={WAIT}"
    for number in (signal.SIGSTOP, signal.SIGKILL):
        finished, took = stop_second(bench, number, option)
        bench.expect_refusal(finished, "rank 1", what=number.name)
        bench.note(f"{number.name}: ended after {took:.0f} s: {quote(finished.error, 100) or 'no error line'}")
        done = len(metrics(bench.run()))
        goes_on = bench.fit("--ckpt_path=last", f"--trainer.rounds={done + 1}")
        bench.expect_success(goes_on, f"going on after {number.name}")


@fault(
    FOUND,
    11,
    injected="two machines run one command, with other images on the second",
    must="both end before training, and say that their data differ",
    peers="–",
)
def different_images(bench: Bench) -> None:
    """The second has one image less in each class."""
    other = bench.folder / "images"
    write_images(other, DOMAINS, list(CLASSES), 15, size=48)
    started = ranks(bench, roots=(str(bench.shop.images), str(other)), nodes=2)
    for rank, running in enumerate(started):
        finished = bench.finish(running, 90)
        bench.expect(finished.code not in (0, -9), f"rank {rank}: exit code {finished.code}")
        bench.expect(not finished.has_traceback, f"rank {rank}: a traceback")
        bench.note(f"rank {rank}: {quote(finished.error, 120) or 'no error line'}")
        bench.expect("images" in finished.error, f"rank {rank}: the difference is not said")
    trained = list((bench.folder / "runs").rglob("round-*.safetensors"))
    bench.expect(not trained, "rounds were trained")
    if trained:
        bench.lose("the result is that of other clients than the tables say")


@fault(
    CLIENTS,
    9,
    injected="a client's code ends the process at once (`os._exit`), as where memory runs out",
    must="an exit code that is not 0, and the run goes on, equal to an unbroken one",
    peers="Flower 1.41: round 1 has 1 result, round 2 has none, the model stays that of round 1, exit 0.",
)
def client_exits(bench: Bench) -> None:
    """Ends the process in round 2."""
    expected, _ = bench.shop.unbroken("promptfl", *FAULTY)
    finished = bench.fit(*FAULTY, faults={"2": "exit"})
    bench.expect(finished.code == 9, f"exit code {finished.code}")
    bench.expect_success(bench.fit(*FAULTY, "--ckpt_path=last"), "going on")
    if bench.expect_same(bench.run(), expected):
        bench.note("the process ended in round 2; the next went on from round 1 and is equal to an unbroken one")


def _hang(bench: Bench, *options: str) -> Finished:
    """Lets a client hang in round 2 of a run, and interrupts it after a while."""
    victim = bench.start_fit(*FAULTY, *options, faults={"2": "hang"})
    victim.wait_for("round 1/")
    ends = time.monotonic() + 3 * WAIT
    while victim.is_alive and time.monotonic() < ends:
        time.sleep(0.1)
    victim.signal(signal.SIGINT)
    return bench.finish(victim, WAIT)


@fault(
    CLIENTS,
    10,
    injected="a client hangs in round 2",
    must="it can be interrupted at once, and goes on equal to an unbroken run",
    peers="Flower 1.41: the round ends at its timeout (an hour unless set), but the process never does.",
)
def client_hangs(bench: Bench) -> None:
    """Waits, interrupts, and goes on."""
    expected, _ = bench.shop.unbroken("promptfl", *FAULTY)
    finished = _hang(bench)
    bench.expect(finished.code == 130, f"exit code {finished.code} after an interrupt")
    bench.expect_success(bench.fit(*FAULTY, "--ckpt_path=last"), "going on")
    if bench.expect_same(bench.run(), expected):
        bench.note(f"waited {3 * WAIT} s for it, ended when interrupted, and went on from round 1; equal in the end")


@fault(
    CLIENTS,
    11,
    injected="the server's own code raises in round 2",
    must="an exit code that is not 0; the finished round is kept, and the run goes on equal to an unbroken one",
    peers="Flower 1.41: `flwr run` returns 0; only `flwr list` says that it failed.",
)
def server_raises(bench: Bench) -> None:
    """An aggregation rule raises."""
    rule = ("--trainer.server.aggregation", "benchmarks.faults.clients.FaultyMean")
    expected, _ = bench.shop.unbroken("promptfl", *rule)
    finished = bench.fit(*rule, faults={"2": "server"})
    bench.expect(finished.code not in (0, -9), f"exit code {finished.code}")
    bench.expect("the server's code is wrong" in finished.output, "what was raised is not shown")
    bench.expect(len(checkpoints(bench.run())) == 1, "round 1 has no checkpoint")
    bench.expect_success(bench.fit(*rule, "--ckpt_path=last"), "going on")
    if bench.expect_same(bench.run(), expected):
        bench.note("its traceback is shown; the next run went on from round 1 and is equal to an unbroken one")


@fault(
    CLIENTS,
    12,
    injected="fewer clients than `min_clients`",
    must="one line, before training",
    peers="Flower 1.41 waits for ever, a line a second.",
)
def too_few_clients(bench: Bench) -> None:
    """Asks for five of three."""
    finished = bench.fit("--trainer.server.min_clients=5")
    bench.expect_refusal(finished, "3 clients", "min_clients is 5")
    bench.expect(finished.seconds < 60, "it took too long")
    bench.note(quote(finished.error))


@fault(
    PROMISES,
    15,
    injected="a client, the server, a callback, a reader of images and the options are wrong, each in a run of its own",
    must="no run that failed has exit code 0",
    peers="Flower 1.41: exit 0 in 7 of the 14 faults of the table above, whatever the order of replies.",
)
def exit_codes(bench: Bench) -> None:
    """Fails in five ways."""
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
