"""What a table gains by choosing its round on the images that it reports: the oracle's gap, method by method."""
