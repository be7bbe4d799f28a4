"""What every method must keep to: its runs, and checks of them. Imports commands, and what runs are made of."""
