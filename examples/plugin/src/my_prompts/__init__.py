"""A method, an aggregator and a data set for fedvlp, each imported on first use."""
