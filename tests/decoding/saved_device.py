"""Page copies of a decoder without a device: a page's bytes name its text."""

import functools
import json

import numpy as np

from kaiju_jax.decoding.engine import saving
from kaiju_jax.decoding.pages import nodes
from tests.decoding import fake_device

PAGE = 4
BYTES = 4 * PAGE


class Copies:
  """Stands for `page_copies.PageCopies` over a `fake_device.Decoder`.

  Attributes:
    written: what `put` wrote, by kind and page.
  """

  def __init__(self, decoder):
    self._account = decoder.account
    self.page_bytes = {kind: BYTES for kind in decoder.account.pages.kinds}
    self.layout = {'fake': [BYTES]}
    self.batch = 3
    self.written = {}
    self._known = None

  def take(self, pages):
    version = self._account.tree.version
    if self._known is None or self._known[0] != version:
      self._known = version, labels(self._account)
    known, found = self._known[1], {}
    for kind, extents in pages.items():
      rows = [
        known[kind, page][:extent] + [0] * (PAGE - extent)
        for page, extent in extents.items()
      ]
      found[kind] = np.array(rows, np.uint32).reshape(-1, PAGE).view(np.uint8)
    return Pending(found)

  def put(self, pages, data):
    for kind, numbers in pages.items():
      assert len(numbers) == len(data[kind])
      for number, row in zip(numbers, data[kind]):
        self.written[kind, number] = row.view(np.uint32).tolist()


class Pending:
  def __init__(self, found):
    self._found = found

  def read(self):
    return self._found


def labels(account) -> dict[tuple[str, int], list[int]]:
  """Returns what pages hold that points hold: the text's hash at each slot."""
  tree, found = account.tree, {}
  assert account.page == PAGE
  for point in tree.points():
    hashes = _hash_each(nodes.tokens(point).tobytes())
    for kind, pages in tree.held_pages(point).items():
      for index, page in pages.items():
        read = hashes[index * PAGE : (index + 1) * PAGE]
        known = found.setdefault((kind, page), [])
        common = min(len(read), len(known))
        assert read[:common] == known[:common]
        known += read[common:]
  return found


@functools.lru_cache(1000)
def _hash_each(tokens: bytes) -> list[int]:
  """Returns the hash of a text behind each of its tokens."""
  hashes, text = [], 0
  for token in np.frombuffer(tokens, np.int32).tolist():
    hashes.append(text := fake_device.appended(text, [token]))
  return hashes


def check(account, written) -> None:
  """Asserts that pages which were put in hold what their points read."""
  for key, read in labels(account).items():
    if key in written:
      assert written[key][: len(read)] == read, key


def saving_of(engine, root='root', **options):
  """Returns the `Saving` of an engine over a fake device."""
  return saving.Saving(engine, root, Copies(engine.decoder), **options)


def save(found, most=10**9, is_wanted=lambda name: True) -> list[bytes]:
  """Returns the bytes of all groups that a `Saving` selects."""
  return [found.copy(x).to_bytes() for x in found.select(most, is_wanted)]


def read_about(data) -> dict:
  """Returns the header of a group's bytes."""
  import safetensors.numpy

  return json.loads(safetensors.numpy.load(bytes(data))['about'].tobytes())
