"""States, phases, strategies and the base class of methods, shared by methods and the federation. Imports utils."""
