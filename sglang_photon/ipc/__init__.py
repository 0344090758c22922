"""CUDA IPC: pool handles opened once, kept within a bound, closed when nobody reads."""
