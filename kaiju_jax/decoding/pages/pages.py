"""Reference counts for the pages of a cache.

A row takes free pages, and it alone appends to them. Rows whose texts begin
alike, and points of the prefix tree, may hold the same pages to read them. A
page is free again when its last holder releases it. No text is overwritten: a
row that goes on from the middle of another row's page copies that page first.
"""

from collections.abc import Iterable
from collections.abc import Mapping


class Full(RuntimeError):
  """An error: no row is free, or too few pages; close a row first."""


class Pages:
  """The free pages of each kind, and the number of holders of the others."""

  def __init__(self, sizes: Mapping[str, int]):
    """Starts with all pages free; `sizes` is their number by kind."""
    # The next page to hand out is at the end of its list.
    self._free = {kind: list(range(size))[::-1] for kind, size in sizes.items()}
    self._holders = {kind: [0] * size for kind, size in sizes.items()}

  @property
  def kinds(self) -> tuple[str, ...]:
    return tuple(self._free)

  def size(self, kind: str) -> int:
    """Returns how many pages the kind has."""
    return len(self._holders[kind])

  def free(self, kind: str) -> int:
    """Returns how many pages have no holder."""
    return len(self._free[kind])

  def count_held(self, kind: str) -> int:
    """Returns how many pages have a holder."""
    return len(self._holders[kind]) - len(self._free[kind])

  def holders(self, kind: str, page: int) -> int:
    """Returns how many holders a page has."""
    return self._holders[kind][page]

  def take(self, kind: str, count: int) -> list[int]:
    """Returns `count` free pages, held by the caller alone; or raises Full."""
    free = self._free[kind]
    if count > len(free):
      raise Full(f'{count} {kind} pages are needed and {len(free)} are free.')
    pages = [free.pop() for _ in range(count)]
    for page in pages:
      self._holders[kind][page] = 1
    return pages

  def hold(self, kind: str, pages: Iterable[int]) -> None:
    """Adds a holder to pages, so that they are not reused before its release.

    Raises ValueError: a page has no holder, so that its content is unknown.
    """
    pages = list(pages)
    holders = self._holders[kind]
    for page in pages:
      if holders[page] < 1:
        raise ValueError(f'{kind} page {page}: nobody holds it.')
    for page in pages:
      holders[page] += 1

  def release(self, kind: str, pages: Iterable[int]) -> None:
    """Removes a holder from pages; those that then have none are free."""
    holders = self._holders[kind]
    for page in pages:
      if holders[page] < 1:
        raise ValueError(f'{kind} page {page}: nobody holds it.')
      holders[page] -= 1
      if not holders[page]:
        self._free[kind].append(page)
