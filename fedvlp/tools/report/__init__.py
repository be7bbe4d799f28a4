"""HTML pages of finished runs, with tables and figures."""
