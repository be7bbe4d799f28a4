"""What DiPrompT's Q-prompt learns."""
