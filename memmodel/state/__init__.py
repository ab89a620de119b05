"""Physical memory as records: what struct page, struct zone and their lists look like here."""
