"""Plots of Datasets; matplotlib is loaded when one is drawn."""

from memmodel.report.plots import plot_copy_table, plot_dataset

__all__ = ["plot_copy_table", "plot_dataset"]
