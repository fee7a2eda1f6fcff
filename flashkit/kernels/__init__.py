"""The Triton kernels, each with its launcher directly below it; the only users of `triton`."""
