"""IconDomains, the bundled benchmark of icons: how it was selected, drawn and checked."""
