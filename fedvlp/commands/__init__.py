"""The entry point, its table of commands, and the commands built on LightningCLI."""
