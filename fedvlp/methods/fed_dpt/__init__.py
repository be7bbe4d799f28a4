"""Fed-DPT and ADAPT on their common base. Imports clip, core, ops and utils."""
