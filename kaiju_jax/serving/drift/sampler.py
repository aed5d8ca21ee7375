"""Takes a few pages of new conversation out of an engine, between its rounds.

A point that was recorded since the last look says which text has just run. Its
last full page is taken, the keys and values of 64 tokens of all layers. So the
sample has a page per prompt and per answer, the same for long ones and short,
and no token that came from the cache alone.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import random
from typing import NamedTuple

import numpy as np

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import page_copies
from kaiju_jax.decoding.pages import nodes
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.serving.drift import calibration
from kaiju_jax.serving.drift import histograms


class PendingPages(NamedTuple):
  """Pages that the device is copying."""

  pending: page_copies.Pending
  # (character, tokens, its page by kind) of each.
  pages: Sequence[tuple[bytes, np.ndarray, Mapping[str, int]]]
  owners: Mapping[str, Sequence[int]]  # Layers with keys and values, by kind.

  def read(self) -> list[histograms.Sample]:
    """Returns the samples; waits for the copies, in any thread."""
    data = self.pending.read()
    # By kind, each page's place among the copies.
    places = {kind: {} for kind in data}
    for _, _, pages in self.pages:
      for kind, page in pages.items():
        places[kind].setdefault(page, len(places[kind]))
    layers = sorted(n for owners in self.owners.values() for n in owners)
    found = []
    for character, tokens_S, pages in self.pages:
      codes = {}
      for kind, page in pages.items():
        owners = self.owners[kind]
        # Keys of all layers of a kind, then their values (`page_copies.py`).
        flat = data[kind][places[kind][page]].view(np.int8)
        split = flat.reshape(2, len(owners), len(tokens_S), -1)
        codes |= {n: split[:, i] for i, n in enumerate(owners)}
      each = np.stack([codes[n] for n in layers])
      found.append(
        histograms.Sample(character, tokens_S, np.abs(each).astype(np.uint8))
      )
    return found


class Sampler:
  """Finds new pages of one engine; its methods run between rounds.

  Raises ValueError if its keys and values have no limits per channel.
  """

  def __init__(
    self,
    decoder: decoder_lib.Decoder,
    copies: page_copies.PageCopies,
    seed: int = 0,
  ):
    self._decoder, self._copies = decoder, copies
    # float32 [layers, 2, K], with which its codes are made.
    self.limits = calibration.read_limits(decoder.params, decoder.config)
    self._tree = decoder.account.tree
    self._random = random.Random(seed)
    self._seen = set(self._tree.points())
    self._version = self._tree.version
    self._model = decoder.replaced

  def take(self, most: int) -> PendingPages | None:
    """Has the device copy up to `most` pages; None where nothing is new.

    Raises:
      ValueError: the decoder's model was replaced: its codes mean other values.
    """
    if self._decoder.replaced != self._model:
      raise ValueError("the decoder's model was replaced")
    if self._tree.version == self._version:
      return None
    self._version = self._tree.version
    points = list(self._tree.points())
    kinds = self._decoder.network.pools
    # An answer and its next prompt may have the same last full page.
    new = {
      point.node: nodes.root(point).salt
      for point in points
      if point not in self._seen and _has(point.node, kinds)
    }
    self._seen = set(points)
    pages = [
      (
        salt,
        np.frombuffer(node.tokens, np.int32),
        {kind: _page(node, kind) for kind in kinds},
      )
      for node, salt in self._random.sample(
        list(new.items()), min(most, len(new))
      )
    ]
    if not pages:
      return None
    size = self._decoder.account.page
    wanted = {kind: {each[kind]: size for *_, each in pages} for kind in kinds}
    owners = {kind: pool.owners for kind, pool in kinds.items()}
    return PendingPages(self._copies.take(wanted), pages, owners)


def _page(node: nodes.Node, kind: str) -> int:
  return node.page if kind == prefix_tree.GLOBAL else node.local


def _has(node: nodes.Node, kinds: Mapping[str, object]) -> bool:
  """Returns whether a node is a page of text, with all its codes."""
  return node.depth > 0 and all(_page(node, kind) >= 0 for kind in kinds)
