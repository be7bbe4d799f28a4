"""One communication round and all that it needs; no method is named here. Imports core, runs and utils."""
