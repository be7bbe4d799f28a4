"""DiPrompT: the method in diprompt.py, its parts and losses beside it. Imports clip, core, ops and utils."""
