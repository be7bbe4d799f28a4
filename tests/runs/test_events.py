"""The file of events has complete lines, even if a writing process is killed."""

import pytest

from fedvlp.runs import events
from fedvlp.runs.events import append_events, read_events
from fedvlp.utils.errors import UserError


def names(run):
    return [event["event"] for event in read_events(run)]


def test_events_come_back_in_order_with_their_values_and_times(tmp_path):
    append_events(tmp_path, [{"event": "b", "round": 2}, {"event": "a", "name": "caf\u00e9\n\x1b"}])
    append_events(tmp_path, [{"event": "c"}])
    first, second, third = read_events(tmp_path)
    assert (first["round"], second["name"], third["event"]) == (2, "caf\u00e9\n\x1b", "c")
    assert first["time"] <= third["time"]
    assert (tmp_path / events.FILE).read_bytes().isascii()


@pytest.mark.parametrize(("before", "left"), [("ab", b""), ("ab", b'{"event": "killed"'), ("", b'{"event": "k')])
def test_an_incomplete_line_of_a_killed_process_is_skipped(tmp_path, before, left):
    append_events(tmp_path, [{"event": name} for name in before])
    path = tmp_path / events.FILE
    path.write_bytes(path.read_bytes() + left)
    assert names(tmp_path) == [*before]
    append_events(tmp_path, [{"event": "c"}])
    assert names(tmp_path) == [*before, "c"]


def test_errors_of_a_missing_or_unwritable_file_have_the_path(tmp_path):
    with pytest.raises(UserError, match=r"Pass the folder of a run"):
        names(tmp_path)
    with pytest.raises(FileNotFoundError) as caught:
        append_events(tmp_path / "gone", [{"event": "a"}])
    assert caught.value.filename == str(tmp_path / "gone" / events.FILE)
