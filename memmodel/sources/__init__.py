"""Text and binary files in, typed records out: no arrays of pages are made here."""
