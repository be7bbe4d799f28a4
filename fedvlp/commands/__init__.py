"""The entry point, its table of commands, and the commands of Lightning's command line. Tools have their own."""
