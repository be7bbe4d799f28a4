"""Every method on one data set, each domain held out in turn, with equal numbers of rounds."""
