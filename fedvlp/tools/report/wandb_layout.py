"""A report on Weights & Biases: the runs of each sweep as one group, compared as fedvlp compares them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from fedvlp.results import Record
from fedvlp.results.grouping import measure_of
from fedvlp.results.printing import finding
from fedvlp.results.record import sweep_name
from fedvlp.results.tables import tables
from fedvlp.utils.errors import UserError

MISSING = 'A report on Weights & Biases needs wandb-workspaces. Run: pip install "fedvlp[wandb]"'
WIDTH = 24
HEIGHT = 8
"""Of a grid of panels and of each panel, in the service's units."""


def wandb_report(records: Sequence[Record], entity: str, project: str, heading: str) -> Any:
    """Returns the report, which is not yet sent; its method ``save`` sends it, and ``url`` is where it is then.

    Each table of ``fedvlp compare`` is a section: its finding in a sentence, bars of each held-out domain's accuracy
    after the last round with deviations over seeds, curves over rounds, accuracy beside what a client sends, and what
    the configs of two runs differ by. Runs are found on the service by their group, as their logger put them there.

    Args:
        records: finished runs, which were logged with ``--config loggers/wandb``.
        entity: the user or team that the project belongs to.
        project: name of the project.
        heading: the report's title.

    Raises:
        UserError: if wandb-workspaces is not installed.
    """
    blocks = _blocks()
    content: list[Any] = []
    for table in tables(records):
        about = table.about
        content.append(blocks.H2(text=f"{about['data']}, {about['protocol']}"))
        content.append(blocks.P(text=finding(table)))
        runs = table.records
        sets = [_run_set(blocks, entity, project, name) for name in _groups(runs)]
        content.append(blocks.PanelGrid(runsets=sets, panels=_panels(blocks, runs)))
    return blocks.Report(entity=entity, project=project, title=heading, blocks=content, width="fluid")


def _blocks() -> Any:
    """Returns what reports are made of, which is slow to import and not needed otherwise."""
    try:
        from wandb_workspaces.reports import v2
    except ImportError as error:
        raise UserError(MISSING) from error
    return v2


def _groups(records: Iterable[Record]) -> list[str]:
    """Returns the groups of the runs on the service, each once."""
    names = [sweep_name(record.folder) or f"{record.method}, {record.data.get('name', '')}" for record in records]
    return list(dict.fromkeys(names))


def _run_set(blocks: Any, entity: str, project: str, group: str) -> Any:
    """Returns the ended runs of a group, those of a method under one line."""
    from wandb_workspaces import expr

    ended = expr.And(expr.Metric("Group") == group, expr.Summary("ended") == True)  # noqa: E712 (it makes a filter)
    return blocks.Runset(entity=entity, project=project, name=group, filters=ended, groupby=["config.method"])


def _panels(blocks: Any, records: Sequence[Record]) -> list[Any]:
    """Returns the panels of a section: bars in full width, and pairs of others below."""
    of_method = {"groupby": blocks.Config("method"), "groupby_aggfunc": "mean", "groupby_rangefunc": "stddev"}
    role = measure_of(records[0]).role
    names = chain.from_iterable(record.last for record in records)
    measured = sorted({name for name in names if name.partition("/")[0] == role})
    curves = [
        blocks.LinePlot(title=title, x="Step", y=[name], title_x="round", title_y="accuracy (%)", **of_method)
        for title, name in (("measured domains", role), ("source validation", "validation"))
    ]
    sent = blocks.ScatterPlot(
        title="accuracy and what a client sends in a round",
        x=blocks.SummaryMetric("communication/upload_parameters"),
        y=blocks.SummaryMetric(f"last/{role}"),
        log_x=True,
    )
    pairs = [*curves, sent, blocks.RunComparer(diff_only="split")]
    bars = blocks.BarPlot(
        title="accuracy after the last round (%)",
        metrics=[blocks.SummaryMetric(f"last/{name}") for name in measured],
        layout=blocks.Layout(x=0, y=0, w=WIDTH, h=HEIGHT),
        **of_method,
    )
    for index, panel in enumerate(pairs):
        row, column = divmod(index, 2)
        panel.layout = blocks.Layout(x=column * WIDTH // 2, y=(row + 1) * HEIGHT, w=WIDTH // 2, h=HEIGHT)
    return [bars, *pairs]
