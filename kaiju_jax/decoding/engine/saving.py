"""Takes points out of an engine, and puts them into another one.

    saving = Saving(engine, root)
    for selected in saving.select(most, is_wanted):
      group = saving.copy(selected)     # between rounds
      data = group.to_bytes()           # in any thread
    …
    Saving(other, root).adopt(groups.parse(data, root))

A point that was taken back is resumed with the bits of the one that was saved:
its pages, its tokens, its owner, and what the head gave each token, with the
head's version. It is recorded as if a row had run its text, so that all rules
of the prefix tree hold for it.
"""

from collections.abc import Callable
from collections.abc import Iterable
import hashlib
import json
import time
from typing import NamedTuple

import jax
import numpy as np

from kaiju_jax.decoding.device import page_copies
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.pages import eviction
from kaiju_jax.decoding.pages import groups
from kaiju_jax.decoding.pages import nodes
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.decoding.pages import recording


def digest_root(
  engine: engine_lib.Engine,
  copies: page_copies.PageCopies,
  weights: str,
  tokenizer: str,
) -> str:
  """Returns the digest of all that keys and values depend on beside the text.

  `weights` is the digest of the model's weights, calibration and config,
  `tokenizer` the tokenizer's; `copies` are of the engine's decoder.
  """
  decoder = engine.decoder
  about = {
    'weights': weights,
    'tokenizer': tokenizer,
    'reference': decoder.network.reference_length,
    'backend': jax.default_backend(),
    'page': decoder.account.page,
    'layout': copies.layout,
  }
  data = json.dumps(about, sort_keys=True).encode()
  return hashlib.blake2b(data, digest_size=16).hexdigest()


class Copied(NamedTuple):
  """A group whose pages the device is copying."""

  group: groups.Group
  pending: page_copies.Pending

  def to_bytes(self) -> bytes:
    """Returns the group as bytes; waits for the copies, in any thread.

    Raises ValueError: a page holds numbers that are not finite.
    """
    return self.group._replace(pages=self.pending.read()).to_bytes()


class Saving:
  """Takes points out of one engine, and puts others into it, between rounds.

  `root` is the `digest_root` of groups that it makes and takes, `copies` are of
  the engine's decoder, and `clock` returns Unix seconds.
  """

  def __init__(
    self,
    engine: engine_lib.Engine,
    root: str,
    copies: page_copies.PageCopies,
    clock: Callable[[], float] = time.time,
  ):
    self.root = root
    self._engine = engine
    self._copies = copies
    self._clock = clock
    self._account = engine.decoder.account
    self._model = engine.decoder.replaced

  def select(
    self, most: int, is_wanted: Callable[[groups.Name], bool]
  ) -> list[groups.Selected]:
    """Returns the groups to save; arguments as those of `groups.select`.

    There are none once the decoder's model was replaced: the root is the former
    model's.
    """
    if self._engine.decoder.replaced != self._model:
      return []
    return groups.select(
      self._account,
      self._engine.recorder,
      self._copies.page_bytes,
      most,
      is_wanted,
    )

  def copy(self, selected: groups.Selected) -> Copied | None:
    """Has the device copy a group; None if one of its points has gone."""
    tree = self._account.tree
    if not all(point in tree for point in selected.points):
      return None
    now = self._clock()
    group = groups.describe(selected, self.root, self._account, now)
    return Copied(group, self._copies.take(selected.pages))

  def check(self, group: groups.Group) -> None:
    """Refuses a group that this engine cannot resume.

    Raises ValueError: of another model, kind of cache or version of the head.
    """
    if self._engine.decoder.replaced != self._model:
      raise ValueError("the decoder's model was replaced")
    if group.root != self.root:
      raise ValueError(f'root {group.root}: must be {self.root}')
    if group.name.version != self._version:
      raise ValueError('its texts are judged by another head, or by none')

  def adopt(self, found: Iterable[groups.Group]) -> int:
    """Puts points into the engine: prefixes first, those of most worth first.

    Nothing is evicted for them: where no page is free, they are left out, and
    so are those of a conversation whose prefix is missing. Points that are
    there stay as they are. Returns how many of the points are in the engine
    now. Raises ValueError, before any is put in: `check` refuses a group.
    """
    found = list(found)
    for group in found:
      self.check(group)
    tree, new = self._account.tree, []
    # The bytes of new pages, by kind and page.
    written: dict[str, dict[int, np.ndarray]] = {
      kind: {} for kind in self._copies.page_bytes
    }
    taking = {group.name: _Taking(group) for group in found}
    ranked = sorted(
      ((one, point) for one in taking.values() for point in one.group.points),
      key=lambda pair: -pair[1].worth,
    )
    # A conversation stands behind the prefix of its tree.
    ranked.sort(key=lambda pair: pair[0].group.name.conversation is not None)
    try:
      for one, saved in ranked:
        count = len(tree)
        point = self._adopt(one, saved, written)
        if point is not None:
          one.points.append(point)
          if len(tree) > count:
            new.append((point, saved.demand, one.group.saved))
      self._copies.put(
        {kind: [*x] for kind, x in written.items()},
        {kind: [*x.values()] for kind, x in written.items()},
      )
    except BaseException:
      for point, *_ in new:
        tree.drop(point)
      raise
    finally:
      # From here on the points alone hold these pages.
      for one in taking.values():
        for (kind, _), page in one.placed.items():
          self._account.pages.release(kind, [page])
    # Recording a point counts as a use of those that it extends.
    for point, (age, idle, begun), at in new:
      away = max(self._clock() - at, 0.0)
      demand = eviction.Demand(age + away, idle + away, begun)
      self._account.policy.set_demand(point, demand)
    for one in taking.values():
      name = one.group.name
      if name.conversation is not None and one.points:
        whose = name.owner, name.conversation
        points = tuple(one.points)
        self._engine.recorder.restore(
          recording.ConversationPoints(whose, one.group.prompt, points)
        )
    return sum(len(one.points) for one in taking.values())

  @property
  def _version(self) -> bytes:
    judge = self._engine.judge
    return b'' if judge is None else judge.version

  def _adopt(
    self,
    one: '_Taking',
    saved: groups.SavedPoint,
    written: dict[str, dict[int, np.ndarray]],
  ) -> nodes.Point | None:
    """Records a point; None if a page is missing, or none is free.

    Adds the pages that are to be written for it to `written`.
    """
    name, scores = one.group.name, None
    if saved.score_LC is not None:
      scores = nodes.Scores(name.version, saved.score_LC)
    text = prefix_tree.Text(
      saved.tokens, saved.shared, name.owner, name.cache_salt, scores
    )
    standing = self._account.tree.standing_pages(text)
    own, new = {}, {}
    for kind, places in saved.places.items():
      own[kind], new[kind] = {}, {}
      for index, place in places.items():
        page = standing[kind].get(index, one.placed.get((kind, place)))
        if page is not None:
          own[kind][index] = page
        elif place == groups.ELSEWHERE:
          return None
        else:
          new[kind][index] = place
    pages = self._account.pages
    if any(len(x) > pages.free(kind) for kind, x in new.items()):
      return None
    for kind, places in new.items():
      numbers = pages.take(kind, len(places))
      for (index, place), page in zip(places.items(), numbers):
        own[kind][index] = one.placed[kind, place] = page
        written[kind][page] = one.group.pages[kind][place]
    return self._account.tree.record(text, own)


class _Taking:
  """A group that is being put into an engine."""

  def __init__(self, group: groups.Group):
    self.group = group
    # The engine's pages of those of the group, by kind and place.
    self.placed: dict[tuple[str, int], int] = {}
    # Those that it has recorded.
    self.points: list[nodes.Point] = []
