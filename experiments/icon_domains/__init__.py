"""IconDomains, the benchmark of icons that the package brings: how it was chosen, drawn and checked."""
