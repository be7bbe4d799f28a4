"""The secure sum of real sites: keys, masks and messages. A simulation adds the same values without masks."""
