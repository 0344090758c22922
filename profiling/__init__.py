"""Installed as `sglang_photon.profiling`."""
