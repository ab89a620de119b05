"""Studies: a block of points in, a block of results out; the grid, the seeds and the threads are the same for all."""
