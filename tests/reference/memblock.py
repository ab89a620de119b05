"""Where a reservation goes, address by address; for machines of a few hundred bytes."""


def free_addresses(memory, reserved):
    """Every address of RAM that is not taken."""
    ram = {at for base, size in memory for at in range(base, base + size)}
    return ram - {at for base, size in reserved for at in range(base, base + size)}


def find(memory, reserved, size, alignment, start, end, bottom_up=False):
    """The first place, in the order of the search, whose addresses are all free and inside."""
    free = free_addresses(memory, reserved)
    places = range(max(end, 0)) if bottom_up else range(max(end, 0), -1, -1)
    for base in places:
        inside = start <= base and base + size <= end
        if inside and base % alignment == 0 and all(at in free for at in range(base, base + size)):
            return base
    return None


def place(memory, reserved, size, base, limit, four_gib):
    """Where an area goes that may go anywhere: bottom-up from 4 GiB on if the limit is that far, else top-down."""
    end = max(start + length for start, length in memory)
    limit = min(limit or end, end)
    if base + size > limit:
        return None
    found = None
    if limit >= four_gib + size:
        found = find(memory, reserved, size, 1, four_gib, limit, bottom_up=True)
    return find(memory, reserved, size, 1, max(base, 1), limit) if found is None else found
