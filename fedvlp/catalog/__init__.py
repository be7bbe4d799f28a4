"""Facts about published data sets, which can be read without images or libraries. Imports nothing."""
