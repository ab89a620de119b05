"""What users call: validate, run one kernel, return what happened."""
