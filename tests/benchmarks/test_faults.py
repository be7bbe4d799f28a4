"""The registry of faults, its page and command with fake rows, and the committed page."""

import signal

import pytest

from benchmarks.faults import __main__ as command
from benchmarks.faults import commands
from benchmarks.faults.bench import ROOT, Bench, NotBuiltError
from benchmarks.faults.clients import VARIABLE, requested_fault
from benchmarks.faults.commands import Finished, Running, several
from benchmarks.faults.fault import FAULTS, Fault, Outcome, Verdict
from benchmarks.faults.page import cell, lines_of, page
from benchmarks.faults.rows import chosen
from benchmarks.faults.runs import differing
from benchmarks.faults.workshop import Workshop

COMMITTED = ROOT / "benchmarks" / "results" / "faults.md"
HOLDS = Outcome(Verdict.HOLDS, "all is well")


def made(name, inject):
    return Fault(name, "water is poured in", "it floats", "they sink", inject)


@pytest.fixture
def only(monkeypatch):
    """Replace all rows by these."""

    def replace_rows(**rows):
        faults = [made(name, inject) for name, inject in rows.items()]
        monkeypatch.setattr(command, "chosen", lambda names: faults)

    return replace_rows


def holds(bench):
    bench.note("it floats")


def fails(bench):
    bench.lose("the cargo")
    assert not bench.expect(False, "it sinks")
    assert bench.expect(True, "it burns")


def raises(bench):
    raise ZeroDivisionError("a mistake of the row")


def is_not_built(bench):
    raise NotBuiltError("there is no ship")


def test_every_row_is_described_and_implemented():
    for fault in chosen():
        assert fault.injected
        assert fault.must
        assert fault.peers
        assert fault.inject is None or fault.inject.__name__ == fault.name
    assert all(fault.inject is not None for fault in chosen())


def test_rows_are_chosen_by_name_in_the_order_of_the_page():
    names = [fault.name for fault in chosen(["status_of_runs", "killed_runs"])]
    assert names == ["killed_runs", "status_of_runs"]
    with pytest.raises(KeyError, match="sunk"):
        chosen(["killed_runs", "sunk"])


def test_the_command_succeeds_if_no_row_fails(only, capsys, tmp_path):
    only(good=holds, later=is_not_built, never=None)
    assert command.main(["--output", str(tmp_path / "page.md")]) == 0
    printed = capsys.readouterr().out
    assert "3 rows: 1 holds, 2 not built yet. Nothing was lost in any row." in printed
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "`python -m benchmarks.faults --output" in text
    assert "| `good` | water is poured in | it floats | nothing | they sink |" in text
    assert "| `later` | water is poured in | **not built yet**. Must: it floats. · there is no ship | – |" in text


@pytest.mark.parametrize("bad", [fails, raises])
def test_a_failing_row_fails_the_command_but_not_other_rows(only, capsys, bad):
    only(bad=bad, good=holds)
    assert command.main([]) == 1
    printed = capsys.readouterr().out
    assert "1 holds, 1 FAILS" in printed
    assert ("it sinks" if bad is fails else "ZeroDivisionError: a mistake of the row") in printed
    assert ("Something was lost in 1 rows: `bad`." in printed) == (bad is fails)


def test_an_unknown_name_is_rejected(capsys):
    assert command.main(["--only", "sunk"]) == 2
    assert "no row 'sunk'" in capsys.readouterr().out


def test_rows_are_listed(capsys):
    assert command.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(chosen())
    assert any("killed_runs: SIGKILL at random moments" in line for line in lines)


def test_the_page_has_tables_with_codes_and_losses():
    lost = Outcome(Verdict.FAILS, "it went on", "a | sail", ("it <leaks>",))
    rows = [(made("one", holds), HOLDS), (made("two", fails), lost)]
    text = page(rows, "sail", "a ship")
    assert "| `one` | water is poured in | all is well | nothing | they sink |" in text
    assert "**FAILS**. Must: it floats. · it &lt;leaks&gt; · it went on | **a \\| sail** | they sink |" in text
    assert text.count("| row | injected |") == 1
    assert "2 rows: 1 holds, 1 FAILS. Something was lost in 1 rows: `two`." in text


def test_other_rows_of_a_page_are_kept():
    first, second = (fault.name for fault in chosen()[:2])
    lost = Outcome(Verdict.FAILS, "", "a | sail")
    previous = page([(FAULTS[first], lost), (FAULTS[second], HOLDS)], "sail", "a ship")
    text = page([(FAULTS[second], Outcome(Verdict.NOT_BUILT))], "row", "a boat", previous)
    assert list(lines_of(text)) == [first, second]
    assert lines_of(text)[first] == lines_of(previous)[first]
    assert f"2 rows: 1 FAILS, 1 not built yet. Something was lost in 1 rows: `{first}`." in text
    assert "`row`, and other rows by earlier commands" in text


def test_cells_are_escaped():
    assert cell("one\ntwo [link](http:evil)") == "one two [link]\\(http:evil)"


def test_the_committed_page_has_every_row():
    lines = COMMITTED.read_text(encoding="utf-8").splitlines()
    named = [line.split("`")[1] for line in lines if line.startswith("| `")]
    assert named == [fault.name for fault in chosen()], "run `python -m benchmarks.faults --output FILE`"


def test_a_refusal_needs_one_line_the_words_and_an_exit_code(tmp_path):
    bench = Bench(Workshop(tmp_path), "row")
    good = Finished(1, "begun\nfedvlp: error: prompt has no numbers\n  a.jpg\n", 1.0)
    assert bench.expect_refusal(good, "prompt", "a.jpg")
    assert bench.outcome(0.0).verdict is Verdict.HOLDS
    assert not bench.expect_refusal(good, "router")
    assert not bench.expect_refusal(Finished(0, good.output, 1.0), "prompt")
    assert not bench.expect_refusal(Finished(1, "Traceback (most recent call last):\n" + good.output, 1.0), "prompt")
    assert not bench.expect_refusal(Finished(-9, good.output, 1.0), "prompt")
    assert len(bench.outcome(0.0).problems) == 4


def test_runs_are_compared_without_seconds(tmp_path):
    runs = [tmp_path / name for name in ("one", "other")]
    for number, run in enumerate(runs):
        run.mkdir()
        (run / "prompts.safetensors").write_bytes(b"prompts")
        (run / "prompts_best.safetensors").write_bytes(b"best")
        (run / "metrics.csv").write_text(f"round,loss,train_seconds\n1,0.5,{number}\n")
    assert differing(*runs) == []
    (runs[0] / "metrics.csv").write_text("round,loss,train_seconds\n1,0.25,0\n")
    (runs[1] / "prompts.safetensors").unlink()
    assert differing(*runs) == ["prompts.safetensors", "metrics.csv"]
    (runs[0] / "prompts.safetensors").unlink()
    assert differing(*runs) == ["prompts.safetensors", "metrics.csv"], "files missing in both runs count as equal"


def test_faults_are_selected_by_round(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert requested_fault(2) == ""
    monkeypatch.setenv(VARIABLE, '{"2": "raise", "all": "nan"}')
    assert [requested_fault(number) for number in (1, 2, 3)] == ["nan", "raise", "nan"]


def test_commands_run_in_separate_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "PRELOADED", ("benchmarks.faults.commands",))
    one = Running(["--version"], tmp_path, tmp_path / "one.txt").wait(60)
    assert one.code == 0
    assert one.output.startswith("fedvlp ")
    many = Running([["--version"], [], ["--help"]], tmp_path, tmp_path / "many.txt").wait(60)
    assert [each.code for each in several(many.output)] == [0, 2, 0]
    assert several(many.output)[2].output.startswith("usage: fedvlp")


def test_a_command_that_does_not_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "PRELOADED", ("benchmarks.faults.commands",))
    # The import of PyTorch takes seconds, so the process still runs when it is killed.
    finished = Running(["fit", "--config=quickstart"], tmp_path, tmp_path / "log.txt").wait(0.0)
    assert finished.hung
    assert finished.code == -signal.SIGKILL
