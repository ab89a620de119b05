"""Recorded traces against the model: every allocation predicted, page for page."""

from memmodel.replaying.comparing import SnapshotComparison
from memmodel.replaying.replay import replay
from memmodel.replaying.report import Mismatch, Report
from memmodel.replaying.what_if import what_if

__all__ = ["Mismatch", "Report", "SnapshotComparison", "replay", "what_if"]
