"""TRIP: the method is in trip.py, its routers and their clustering in separate files. Imports clip, core and utils."""
