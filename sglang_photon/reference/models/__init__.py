"""The demo models: how they are named, made, kept and asked."""
