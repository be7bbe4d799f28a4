"""Faults put into real runs: what is injected, what happens, and what is lost. ``python -m benchmarks.faults``.

``fault`` is what a row is, ``registry`` finds all rows, which are in ``rows``, and ``page`` makes a table of them.
``bench`` is what a row works with: commands in processes of their own (``commands``), images and whole runs to compare
with (``workshop``, ``runs``), and notes of what was found. ``clients`` holds what misbehaves inside a run.
"""
