"""Two working sets of a step, the rules between them, and the lanes that forwards run on."""
