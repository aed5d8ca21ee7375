"""Groups of points that leave a process together, as plain bytes.

    prefix         the points of one tree that all its readers may share
    conversation   the points of one conversation of one owner

A group holds each of its pages once. Full pages of a conversation's points that
the prefix group of the same tree holds are in that group alone: a conversation
takes its place back behind its prefix. Points that belong to no conversation
are in no group, because no later request could name them to have them removed.

A row goes on writing in the page in which a point ends. So a page goes with the
number of its first tokens that the group's points read, and none behind them.
"""

from collections.abc import Callable
from collections.abc import Mapping
import json
from typing import NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from kaiju_jax.decoding.pages import eviction
from kaiju_jax.decoding.pages import nodes
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.decoding.pages import recording
from kaiju_jax.decoding.pages import rows as rows_lib

# A change of the bytes below, or of what they mean, is another form.
FORM = 1
# The place of a page that the prefix group has.
ELSEWHERE = -1


class Name(NamedTuple):
  """What tells groups apart."""

  # Of the head that judged the texts; b'' without a head.
  version: bytes
  # Of the tree.
  cache_salt: bytes
  # Of the conversation; b'' for a prefix.
  owner: bytes = b''
  # Its name; None for a prefix.
  conversation: str | None = None

  @property
  def prefix(self) -> 'Name':
    """The prefix group of the same tree."""
    return Name(self.version, self.cache_salt)


class SavedPoint(NamedTuple):
  """A point as plain data."""

  # int32 [n].
  tokens: np.ndarray
  # How many of its first tokens all owners may share.
  shared: int
  # The head's float32 scores [n, C]; None without a head.
  score_LC: np.ndarray | None
  # By kind {index of a page: its place among the group's pages}.
  places: dict[str, dict[int, int]]
  # That of the eviction's policy when it was saved.
  worth: float
  # That for it.
  demand: eviction.Demand


class Group(NamedTuple):
  """A group as plain data."""

  # Of the group.
  name: Name
  # Digest of all that keys and values depend on beside the text.
  root: str
  # The digest of the conversation's latest prompt; b'' for a prefix.
  prompt: bytes
  # Unix seconds at which it was copied.
  saved: float
  # Of most worth first.
  points: tuple[SavedPoint, ...]
  # By kind, uint8 [n, bytes of a page].
  pages: dict[str, np.ndarray]

  def to_bytes(self) -> bytes:
    """Returns the group as bytes; `parse` reads them."""
    arrays = {f'pages {kind}': x for kind, x in self.pages.items()}
    points = []
    for number, point in enumerate(self.points):
      arrays[f'tokens {number}'] = np.ascontiguousarray(point.tokens)
      if point.score_LC is not None:
        arrays[f'scores {number}'] = np.ascontiguousarray(point.score_LC)
      places = {kind: [*x.items()] for kind, x in point.places.items()}
      points.append([point.shared, places, point.worth, *point.demand])
    version, salt, owner, conversation = self.name
    about = {
      'form': FORM,
      'root': self.root,
      'version': version.hex(),
      'cache_salt': salt.decode(),
      'owner': owner.decode(),
      'conversation': conversation,
      'prompt': self.prompt.hex(),
      'saved': self.saved,
      'points': points,
    }
    arrays['about'] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    return safetensors.numpy.save(arrays)


def parse(data: bytes, root: str) -> Group:
  """Returns the group that bytes hold; a seal says that `to_bytes` made them.

  Raises ValueError: they have another form, or are of another root.
  """
  try:
    arrays = safetensors.numpy.load(bytes(data))
    about = json.loads(arrays['about'].tobytes())
    form, made = about['form'], about['root']
  except (safetensors.SafetensorError, LookupError, ValueError) as error:
    raise ValueError(f'it holds no points: {error}') from error
  if form != FORM:
    raise ValueError(f'it has the form {form}, and this version reads {FORM}')
  if made != root:
    raise ValueError(
      'its points are of another model, tokenizer, page size or kind of cache'
      f' ({made:.12}…, and this is {root:.12}…)'
    )
  try:
    return _group(about, arrays)
  except (LookupError, TypeError) as error:
    raise ValueError(f'it holds no points: {error!r}') from error


def _group(about: dict, arrays: dict[str, np.ndarray]) -> Group:
  points = []
  for number, (shared, places, worth, *demand) in enumerate(about['points']):
    points.append(
      SavedPoint(
        arrays[f'tokens {number}'],
        shared,
        arrays.get(f'scores {number}'),
        {kind: dict(map(tuple, x)) for kind, x in places.items()},
        worth,
        eviction.Demand(*demand),
      )
    )
  return Group(
    Name(
      bytes.fromhex(about['version']),
      about['cache_salt'].encode(),
      about['owner'].encode(),
      about['conversation'],
    ),
    about['root'],
    bytes.fromhex(about['prompt']),
    about['saved'],
    tuple(points),
    {
      key.removeprefix('pages '): x
      for key, x in arrays.items()
      if key.startswith('pages ')
    },
  )


class Selected(NamedTuple):
  """The points of one group that are to be saved."""

  # Of the group.
  name: Name
  # As `Group.prompt`.
  prompt: bytes
  # Of most worth first.
  points: tuple[nodes.Point, ...]
  # By kind {page: how many of its tokens}, those that the group itself has, in
  # order.
  pages: dict[str, dict[int, int]]
  # How many conversations began at them.
  begun: int


def select(
  account: rows_lib.Rows,
  recorder: recording.Recorder,
  page_bytes: Mapping[str, int],
  most: int,
  is_wanted: Callable[[Name], bool],
) -> list[Selected]:
  """Returns the groups of points that are to be saved, prefixes first.

  It changes nothing. Left out are points whose scores have not all been read,
  those of least worth beyond `most` bytes of pages, of which `page_bytes` has
  the size by kind, and groups that `is_wanted` refuses.
  """
  named = _name_groups(account.tree, recorder, is_wanted)
  held = {
    point: _extents(account, point)
    for _, points in named.values()
    for point in points
    if not np.isnan(_scores(point)).any()
  }
  taken, kept, left = set(), [], most
  for point in sorted(held, key=account.policy.worth, reverse=True):
    added = held[point].items() - taken
    cost = sum(page_bytes[kind] for (kind, _), _ in added)
    if cost <= left:
      left -= cost
      kept.append(point)
      taken |= added
  found = []
  for name, (prompt, points) in sorted(
    named.items(), key=lambda item: item[0].conversation is not None
  ):
    ours = tuple(point for point in kept if point in points)
    if not ours:
      continue
    pages = {kind: {} for kind in page_bytes}
    theirs = set()
    if name.conversation is not None:
      _, shared = named.get(name.prefix, (b'', {}))
      for point in kept:
        if point in shared:
          theirs |= held[point].items()
    for point in ours:
      for place, extent in held[point].items() - theirs:
        kind, page = place
        pages[kind][page] = max(extent, pages[kind].get(page, 0))
    ordered = {kind: dict(sorted(x.items())) for kind, x in pages.items()}
    begun = sum(account.policy.demand(point).begun for point in ours)
    found.append(Selected(name, prompt, ours, ordered, begun))
  return found


def describe(
  selected: Selected, root: str, account: rows_lib.Rows, saved: float
) -> Group:
  """Returns selected points as plain data, still without their pages."""
  place = {
    kind: {page: n for n, page in enumerate(x)}
    for kind, x in selected.pages.items()
  }
  points = []
  for point in selected.points:
    held = account.tree.held_pages(point)
    places = {
      kind: {
        index: place[kind].get(page, ELSEWHERE) for index, page in x.items()
      }
      for kind, x in held.items()
    }
    score_LC = None
    if point.score_TC is not None:
      score_LC = nodes.scores(point)
    points.append(
      SavedPoint(
        nodes.tokens(point),
        point.shared,
        score_LC,
        places,
        account.policy.worth(point),
        account.policy.demand(point),
      )
    )
  prompt, points = selected.prompt, tuple(points)
  return Group(selected.name, root, prompt, saved, points, {})


def _name_groups(
  tree: prefix_tree.PrefixTree,
  recorder: recording.Recorder,
  is_wanted: Callable[[Name], bool],
) -> dict[Name, tuple[bytes, dict[nodes.Point, None]]]:
  """Returns the prompts and the points of groups by their names."""
  found: dict[Name, tuple[bytes, dict[nodes.Point, None]]] = {}
  pairs = [
    (Name(*_tree(point)), b'', point)
    for point in tree.points()
    if not point.salt and point.length <= point.shared
  ]
  for (owner, name), prompt, points in recorder.conversations():
    for point in points if isinstance(name, str) else ():
      pairs.append((Name(*_tree(point), owner, name), prompt, point))
  for name, prompt, point in pairs:
    if name in found or is_wanted(name):
      found.setdefault(name, (prompt, {}))[1][point] = None
  return found


def _extents(
  account: rows_lib.Rows, point: nodes.Point
) -> dict[tuple[str, int], int]:
  """Returns how many tokens a point reads of each page, by kind and page."""
  S = account.page
  return {
    (kind, page): min(S, point.length - index * S)
    for kind, pages in account.tree.held_pages(point).items()
    for index, page in pages.items()
  }


def _tree(point: nodes.Point) -> tuple[bytes, bytes]:
  """Returns the key of a point's tree, as `Text.tree`."""
  root = nodes.root(point)
  return root.tokens, root.salt


def _scores(point: nodes.Point) -> np.ndarray:
  return np.zeros(0) if point.score_TC is None else nodes.scores(point)
