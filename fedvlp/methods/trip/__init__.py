"""TRIP: the method in trip.py, its routers and their clustering beside it. Imports clip, core, ops and utils."""
