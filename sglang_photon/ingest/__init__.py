"""Intake of requests in the time that the forward in flight leaves, and within a memory budget."""
