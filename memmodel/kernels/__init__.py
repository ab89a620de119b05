"""Compiled code only: integers in, counts out. What users call is in `mechanisms`, file by file the same names."""
