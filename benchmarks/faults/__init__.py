"""Faults injected into real runs, their effects, and losses. ``python -m benchmarks.faults``.

``fault`` defines a row of the table, ``rows`` contains all rows, and ``page`` formats the table. ``bench`` is the
environment of a row: commands in separate processes (``commands``), images and undisturbed runs for comparison
(``workshop``, ``runs``), and notes of the findings. ``clients`` contains the parts of a run that misbehave.
"""
