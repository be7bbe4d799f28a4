"""What every method and the loop agree on: states, phases, the base class, strategies. Imports utils."""
