"""Which texts become points, and which points a later turn makes needless."""

from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Sequence

from kaiju_jax.decoding import prefix_tree

# Tokens after which a long prompt has a point of its own. Our guess.
EVERY = 8_192


def stops(shared: int, resumed: int, prompt: int) -> list[int]:
  """Returns the lengths at which a prompt becomes a point, rising.

  Args:
    shared: how many of its first tokens everybody may share.
    resumed: how many were there.
    prompt: how many it has.
  """
  found = {prompt, *range(resumed + EVERY, prompt, EVERY)}
  if resumed < shared:
    found.add(shared)
  return sorted(found)


def soon(
  text: prefix_tree.Text, stops: Sequence[int], other: prefix_tree.Text
) -> int:
  """Returns how much of another text can be resumed once a text has run.

  Args:
    text: one that is being prefilled.
    stops: the lengths at which it becomes a point.
    other: which could wait for it.
  """
  size = min(len(text.tokens), len(other.tokens))
  differs = text.tokens[:size] != other.tokens[:size]
  common = int(differs.argmax()) if differs.any() else size
  if text.owner != other.owner:
    common = min(common, text.shared, other.shared)
  most = min(common, len(other.tokens) - 1)
  # A point serves the token before its last, for a prompt that is the same.
  return max((min(x, most) for x in stops if x <= most + 1), default=0)


def forget(
  tree: prefix_tree.PrefixTree, points: Iterable[prefix_tree.Point]
) -> None:
  """Drops points that are still there."""
  for point in points:
    if point in tree:
      tree.drop(point)


class Latest:
  """The points of each conversation's latest turn."""

  def __init__(self, tree: prefix_tree.PrefixTree):
    self._tree = tree
    self._points: dict[Hashable, list[prefix_tree.Point]] = {}

  def note(
    self,
    conversation: Hashable | None,
    match: prefix_tree.Match | None,
    points: Sequence[prefix_tree.Point],
  ) -> None:
    """Drops what a conversation's next turn does not need."""
    if conversation is None:
      return
    resumed = None if match is None else match.point
    before = self._points.get(conversation, [])
    forget(
      self._tree, [x for x in before if x is not resumed and x not in points]
    )
    self._points[conversation] = [x for x in before if x is resumed] + [
      x for x in points if x is not resumed
    ]
