"""A fair choice of options: trials, their choice on source validation, and the runs of the choice."""
