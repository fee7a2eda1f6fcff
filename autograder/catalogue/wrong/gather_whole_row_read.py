# exercise: gather_pages
# dies by: entries of the table that name no page
# bug: none


def gather_pages(pages, block_table, length):
    """Keys 0 to length - 1 of one sequence, (Hkv, length, D)."""
    rows = pages[block_table.long()].flatten(0, 1)
    return rows[:length].transpose(0, 1)
