"""`photon roofline`: what a model could do on a GPU at best, from data sheets and arithmetic.

A decode step has to read the weights and the KV cache once; a prefill has to do two operations per
weight and token. Neither can be faster than the memory and the arithmetic units of the GPU allow.
Before anybody hunts for bubbles it helps to know that floor, and how far above it a measured step
stands. docs/ROOFLINE.md says what these numbers mean and what they cannot say.

    config_file -> architecture, vision, formats -> work (bytes, FLOP) -> ceiling (seconds)
                                                                       -> report, plot
"""
