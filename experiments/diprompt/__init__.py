"""The learning of DiPrompT's query prompt."""
