"""The oracle's gap of each method: the gain of choosing the round on the reported images."""
