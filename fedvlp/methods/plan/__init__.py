"""PLAN: the method in plan.py, prompts and aggregators beside it. Imports clip, core, ops and utils."""
