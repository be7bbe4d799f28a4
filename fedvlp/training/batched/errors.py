"""Why clients cannot be trained in one batched call."""


class CannotBatchError(Exception):
    """A step, or its optimizer, cannot be run for several clients at once with the results of one after another."""


class UnequalStepsError(Exception):
    """These clients do not take the same steps; others of the same phase may."""
