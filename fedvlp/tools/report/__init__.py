"""Pages of finished runs, with tables and figures. Imports core, results and utils."""
