"""A method, an aggregator and a data set for fedvlp; each is imported when it is named."""
