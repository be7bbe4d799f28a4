"""Tables of finished runs, beside the numbers that papers print."""
