"""What the methods send, counted, beside what their papers print."""
