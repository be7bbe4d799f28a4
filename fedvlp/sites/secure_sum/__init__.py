"""The secure sum of real sites: keys, masks and messages. A simulation adds the same numbers without masks."""
