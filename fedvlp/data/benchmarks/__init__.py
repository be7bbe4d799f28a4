"""Data modules for published data sets in all supported layouts. Imports files, splits and the catalog."""
