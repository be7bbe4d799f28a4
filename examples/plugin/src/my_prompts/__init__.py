"""A method, an aggregation rule and a data set for fedvlp; each is imported when it is named."""
