"""Installed as `sglang_photon.bench`."""
