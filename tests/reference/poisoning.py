"""The slow obvious twin of memmodel.kernels.poisoning: sets of bad lines, and a queue of 16 entries a CPU."""

QUEUE_ENTRIES = 16


class HardwareErrors:
    """Latent errors: (pfn, line) pairs."""

    def __init__(self):
        self.lines = set()

    def inject(self, pfn, line):
        self.lines.add((pfn, line))

    def in_folio(self, pfn, order, lines_per_page):
        """Bad lines of a folio, counted from its first byte."""
        last = pfn + 2**order
        return {(page - pfn) * lines_per_page + line for page, line in self.lines if pfn <= page < last}


class FailureQueue:
    """Where copies leave bad pfns for one CPU's worker; a full queue drops the newest."""

    def __init__(self):
        self.entries = []
        self.n_dropped = 0

    def put(self, pfn):
        if len(self.entries) == QUEUE_ENTRIES:
            self.n_dropped += 1
            return False
        self.entries.append(pfn)
        return True

    def work(self, buddy):
        """Drain, first in first out; per entry (pfn, already poisoned, taken off the buddy)."""
        done = []
        while self.entries:
            pfn = self.entries.pop(0)
            if pfn in buddy.poisoned:
                done.append((pfn, True, False))
            else:
                buddy.poisoned.add(pfn)
                free = buddy.take_off(pfn)
                done.append((pfn, False, free))
                if not free:
                    buddy.fail_used(pfn)
        return done
