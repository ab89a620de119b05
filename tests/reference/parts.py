"""Parts of kernels, called from Python."""

from memmodel.jit import kernel


def alone(part):
    """A part as a kernel of its own."""
    return kernel(getattr(part, "py_func", part))
