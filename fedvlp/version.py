"""The version of the package; kept apart so that asking for it imports nothing."""

__version__ = "0.1.0"
