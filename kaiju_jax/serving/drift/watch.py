"""Watches a server's traffic in a thread, and keeps static checkpoints.

    calibration-SECONDS.drift    a sealed checkpoint (`storage/sealed.py`)

It only watches: the limits of the engine stay those of its model. Every few
seconds it takes some pages (`Sampler`), it gives each window's divergence to
the server's metrics, and every four hours it writes a checkpoint, unless the
guard is frozen. `kaiju drift` makes a candidate of one. A new process goes on
from the last checkpoint of the same weights.

A checkpoint holds counts of codes and of hashed tokens over hours, and tokens
per day of characters, whose names are pseudonyms under the server's key: no
text, and no owner.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import logging
import pathlib
import random
import threading
import time
from typing import NamedTuple

import numpy as np

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import packed
from kaiju_jax.decoding.device import page_copies
from kaiju_jax.decoding.pages import nodes
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.serving.drift import calibration
from kaiju_jax.serving.drift import histograms
from kaiju_jax.serving.drift import monitor as monitor_lib
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.storage import files
from kaiju_jax.storage import sealed

_LOG = logging.getLogger(__name__)
PURPOSE, STEM, SUFFIX = 'drift', 'calibration-', '.drift'
# Seconds between two samples, and the most pages of one; our guess.
INTERVAL_S, BATCH = 15.0, 16
# Seconds between two checkpoints (source 003), and how many are kept.
CHECKPOINT, KEPT = 4 * 3600.0, 12
# The most bytes of a checkpoint.
LARGEST = 2**28


class Folder:
  """The checkpoints of a server; arguments as `saved_points.Folder`'s."""

  def __init__(self, path: pathlib.Path, secret: bytes):
    files.make_folder(path)
    path.chmod(0o700)
    self.path = path
    self._sealer = sealed.Sealer(secret, PURPOSE)

  def rename(self, character: bytes) -> bytes:
    """Returns a character's pseudonym."""
    return self._sealer.pseudonym(character, 8)

  def list(self) -> list[pathlib.Path]:
    """Returns the checkpoints, the newest first."""
    found = self.path.glob(f'{STEM}*{SUFFIX}')
    return sorted(found, key=lambda path: (len(path.name), path.name))[::-1]

  def write(self, data: bytes, now: float) -> pathlib.Path:
    """Writes a checkpoint, and removes the oldest; raises OSError."""
    path = self.path / f'{STEM}{int(now)}{SUFFIX}'
    self._sealer.write(path, data)
    for old in self.list()[KEPT:]:
      old.unlink(missing_ok=True)
    return path

  def read(self, path: pathlib.Path) -> memoryview:
    """Returns a checkpoint's bytes; raises OSError or sealed.SealError."""
    return self._sealer.read(path, LARGEST)

  def restore(self, weights: str) -> tuple[monitor_lib.Monitor, float] | None:
    """Returns the newest checkpoint of some weights, and its Unix seconds.

    Others are left where they are; one that cannot be read is logged.
    """
    for path in self.list():
      try:
        data = self.read(path)
        _, fields = monitor_lib.parse(data)
        if fields['about'].get('weights') == weights:
          seconds = fields['about']['seconds']
          return monitor_lib.Monitor.from_bytes(data), seconds
      except (OSError, ValueError) as error:
        _LOG.warning('%s is refused: %s.', path.name, error)
    return None


class PendingPages(NamedTuple):
  """Pages of new conversation that the device is copying.

  A point that was recorded since the last sample says which text has just run.
  Its last full page is copied, the keys and values of 64 tokens of all layers.
  So the sample has one page per prompt and per answer, and no token that came
  from the cache alone.
  """

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
    self.limits: np.ndarray = calibration.read_limits(
      packed.unpack(decoder.params), decoder.config
    )
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
  if kind == prefix_tree.GLOBAL:
    return node.page
  return node.local.get(kind, -1)


def _has(node: nodes.Node, kinds: Mapping[str, object]) -> bool:
  """Returns whether a node is a page of text, with all its codes."""
  return node.depth > 0 and all(_page(node, kind) >= 0 for kind in kinds)


class DriftWatch:
  """A thread that samples one worker's engine.

  Args:
    folder: of the checkpoints, from the newest of which it continues.
    weights: the digest of the model.
    show: takes both divergences of a window, None where there are none yet, and
      whether the guard is frozen (`Metrics.show_drift`).
  """

  def __init__(
    self,
    worker: worker_lib.Worker,
    sampler: Sampler,
    folder: Folder,
    weights: str,
    show: Callable[[float | None, float | None, bool], None],
    clock: Callable[[], float] = time.time,
  ):
    found = folder.restore(weights)
    if found is None:
      found = monitor_lib.Monitor(sampler.limits), clock()
    self.monitor, self._written = found
    self._worker, self._sampler, self._folder = worker, sampler, folder
    self._weights, self._show, self._clock = weights, show, clock
    self._stopping = threading.Event()
    self._thread = threading.Thread(target=self._run, name='drift', daemon=True)
    show(None, None, self.monitor.guard.is_frozen)

  def start(self) -> None:
    """Starts the thread."""
    self._thread.start()

  def stop(self) -> None:
    """Ends the thread; the engine may have stopped."""
    self._stopping.set()
    if self._thread.is_alive():
      self._thread.join()

  def sample(self) -> None:
    """Samples once, and writes a checkpoint where one is due.

    Raises:
      OSError: the folder cannot be written to.
      ValueError: the decoder's model was replaced.
    """
    now = self._clock()
    wanted = min(self.monitor.count_wanted(now), BATCH)
    samples = []
    if wanted:
      taken = self._worker.ask(lambda: self._sampler.take(wanted))
      if taken is not None:
        samples = [
          one._replace(character=self._folder.rename(one.character))
          for one in taken.read()
        ]
    window = self.monitor.add(samples, now)
    if window is not None:
      values = window.divergence or (None, None)
      self._show(*values, self.monitor.guard.is_frozen)
    if now - self._written >= CHECKPOINT and not self.monitor.guard.is_frozen:
      about = {'weights': self._weights, 'seconds': int(now)}
      self._folder.write(self.monitor.to_bytes(about), now)
      self._written = now

  def _run(self) -> None:
    while not self._stopping.wait(INTERVAL_S):
      try:
        self.sample()
      except Exception:
        # The server answers all the same; the next sample tries again.
        _LOG.exception('traffic could not be watched')
