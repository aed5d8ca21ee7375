"""How many hold each page of a cache: taken by one, read by many, free at last.

A page is taken by a row, which alone appends to it. Others may hold it besides:
rows whose texts begin alike, and the points of a prefix tree. It is free again
when its last holder has released it.

What another holder can read is never written again, because a row appends only
behind its own text, to pages that it took; whoever goes on from the middle of a
page that another row took copies that page first.
"""

from collections.abc import Iterable
from collections.abc import Mapping


class Full(RuntimeError):
  """No row is free, or too few pages; close a row first."""


class Pages:
  """Free pages of each kind, and the number of holders of all others."""

  def __init__(self, sizes: Mapping[str, int]):
    """Starts with all pages free.

    Args:
      sizes: pages of each kind.
    """
    # What is handed out next stands at the end of a list.
    self._free = {kind: list(range(size))[::-1] for kind, size in sizes.items()}
    self._holders = {kind: [0] * size for kind, size in sizes.items()}

  @property
  def kinds(self) -> tuple[str, ...]:
    return tuple(self._free)

  def size(self, kind: str) -> int:
    """Returns how many pages there are."""
    return len(self._holders[kind])

  def free(self, kind: str) -> int:
    """Returns how many pages nobody holds."""
    return len(self._free[kind])

  def count_held(self, kind: str) -> int:
    """Returns how many pages somebody holds."""
    return len(self._holders[kind]) - len(self._free[kind])

  def holders(self, kind: str, page: int) -> int:
    """Returns how many hold a page."""
    return self._holders[kind][page]

  def take(self, kind: str, count: int) -> list[int]:
    """Returns pages that were free, each with one holder now.

    Raises:
      Full: fewer are free; then none is taken.
    """
    free = self._free[kind]
    if count > len(free):
      raise Full(f'{count} {kind} pages are needed and {len(free)} are free.')
    pages = [free.pop() for _ in range(count)]
    for page in pages:
      self._holders[kind][page] = 1
    return pages

  def hold(self, kind: str, pages: Iterable[int]) -> None:
    """Adds a holder to pages that have one already.

    Raises:
      ValueError: a page that nobody holds: it may be anything by now.
    """
    pages = list(pages)
    holders = self._holders[kind]
    for page in pages:
      if holders[page] < 1:
        raise ValueError(f'{kind} page {page}: nobody holds it.')
    for page in pages:
      holders[page] += 1

  def release(self, kind: str, pages: Iterable[int]) -> None:
    """Takes one holder away; a page without any is free.

    Raises:
      ValueError: a page that nobody holds.
    """
    holders = self._holders[kind]
    for page in pages:
      if holders[page] < 1:
        raise ValueError(f'{kind} page {page}: nobody holds it.')
      holders[page] -= 1
      if not holders[page]:
        self._free[kind].append(page)
