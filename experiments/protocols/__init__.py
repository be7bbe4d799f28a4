"""Every protocol with the same four methods: what each measures, in one table a protocol."""
