"""The log of blocked texts: keeps the last 10,000, to replay through a gate.

Source 003's runbook says: when benign texts are refused, run the last 10,000
blocked messages through the classifier's previous version; the difference shows
the effect of the new one. A record has the score, the dimension, the tier, the
classifier's version, and an HMAC of the owner under the server's key. Without
the key, the HMAC tells owners apart but names none.

Records are lines of JSON in numbered files of a folder that only the server's
user can read. A file takes a tenth of the texts to keep. The oldest file is
removed once the others hold enough, so at most 1.1 × `keep` texts are on disk.
If the process is killed, only the line being written may be lost. Lines are not
flushed to the disk one by one, so a power cut may lose the last ones.
"""

from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import dataclasses
import hashlib
import hmac
import itertools
import json
import logging
import math
import os
import pathlib
import re
import threading
import time
from typing import Any
from typing import NamedTuple

from kaiju_jax.serving.safety import gate as gate_lib
from kaiju_jax.serving.safety import thresholds
from kaiju_jax.storage import files

KEEP = 10_000
# The log stores so many characters of a text, its last ones.
LONGEST = 16_000
_NAME = re.compile(r'blocked-(\d{8})\.jsonl')


@dataclasses.dataclass(frozen=True)
class Record:
  """One blocked text."""

  time: float  # The time of the refusal, in seconds of Unix time.
  stage: str  # The stage that blocked it, `moderation.Verdict.stage`.
  tier: str  # 'adult' or 'minor'.
  dimension: str  # The violated dimension; '' where it is not known.
  score: float | None  # Its score; None where there is none.
  version: str  # The classifier's version.
  owner: str  # HMAC-SHA256 of the owner (the API token's user), in hex.
  text: str  # The last `LONGEST` characters of the text.


class Replay(NamedTuple):
  """The judgement of another gate on the logged texts."""

  version: str  # The other gate's version.
  rows: int  # The number of texts that a gate had blocked.
  blocked: int  # How many of these the other gate blocks, too.
  moved: int  # How many of those it blocks for another dimension.
  passed: tuple[Record, ...]  # The records that it would let pass.
  # The number of texts that other stages had blocked; they are not judged.
  others: int


class Blocked:
  """The log in a folder. Threads may share it; processes may not."""

  def __init__(
    self, folder: str | os.PathLike[str], key: bytes, keep: int = KEEP
  ):
    """Opens a log, or creates one.

    Args:
      folder: the log's folder. A new one is readable by its user alone.
      key: the server's secret, at least 16 bytes.
      keep: the number of texts to keep.

    Raises:
      ValueError: the key is too short, or `keep` is below 1.
      OSError: the folder cannot be read or written.
    """
    if len(key) < 16:
      raise ValueError(f'key: has {len(key)} bytes; must have at least 16.')
    if keep < 1:
      raise ValueError(f'keep={keep}: must be at least 1 text.')
    self._folder = pathlib.Path(folder)
    self._key = key
    self._keep = keep
    self._per_file = max(1, keep // 10)
    self._lock = threading.Lock()
    self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    self._folder.chmod(0o700)
    self._lines = {
      number: _repair(self._path(number)) for number in self._numbers()
    }

  def add(
    self,
    stage: str,
    tier: str,
    dimension: str,
    score: float | None,
    version: str,
    owner: str,
    text: str,
  ) -> None:
    """Appends a `Record` of the arguments; of the owner it stores only an HMAC.

    Raises OSError if it cannot be written; the log is unchanged.
    """
    record = Record(
      time=time.time(),
      stage=stage,
      tier=tier,
      dimension=dimension,
      score=None if score is None or math.isnan(score) else float(score),
      version=version,
      owner=self.owner(owner),
      text=text[-LONGEST:],
    )
    line = json.dumps(dataclasses.asdict(record)).encode() + b'\n'
    with self._lock:
      last = max(self._lines, default=0)
      if self._lines.get(last, self._per_file) >= self._per_file:
        last += 1
        self._lines[last] = 0
        self._drop()
      with open(self._path(last), 'ab', opener=_open_private) as file:
        files.append(file.fileno(), line)
      self._lines[last] += 1

  def owner(self, name: str) -> str:
    """Returns the HMAC, in hex, that stands for an owner in records."""
    data = name.encode(errors='surrogatepass')
    return hmac.new(self._key, data, hashlib.sha256).hexdigest()

  def _drop(self) -> None:
    """Removes the oldest files while the others hold `keep` texts."""
    total = sum(self._lines.values())
    for number in sorted(self._lines)[:-1]:
      total -= self._lines[number]
      if total < self._keep:
        return
      self._path(number).unlink(missing_ok=True)
      del self._lines[number]

  def _path(self, number: int) -> pathlib.Path:
    return self._folder / f'blocked-{number:08}.jsonl'

  def _numbers(self) -> list[int]:
    return [int(_NAME.fullmatch(path.name)[1]) for path in _paths(self._folder)]


def read(folder: str | os.PathLike[str], keep: int = KEEP) -> Iterator[Record]:
  """Yields the last `keep` records of a folder's log, oldest first.

  It writes nothing, so the log's server may go on; a line that this server is
  writing is left out. Damaged lines are skipped; a warning gives their number.

  Raises:
    OSError: the folder cannot be read.
  """
  with contextlib.ExitStack() as stack:
    opened = []
    for path in _paths(pathlib.Path(folder)):
      with contextlib.suppress(FileNotFoundError):  # The server removed it.
        # An open file stays readable after its removal.
        file = stack.enter_context(path.open('rb'))
        lines = sum(line.endswith(b'\n') for line in file)
        file.seek(0)
        opened.append((file, lines))
    skip = max(0, sum(lines for _, lines in opened) - keep)
    bad = 0
    for file, lines in opened:
      for line in itertools.islice(file, lines):
        if skip:
          skip -= 1
        elif record := _parse(line):
          yield record
        else:
          bad += 1
    if bad:
      logging.warning('%s: %d lines are damaged.', folder, bad)


def replay(
  records: Iterable[Record], gate: gate_lib.Gate, policy: thresholds.Policy
) -> Replay:
  """Judges logged texts by another gate and its thresholds."""
  rows = blocked = moved = others = 0
  passed = []
  for record in records:
    if record.stage != 'gate':
      others += 1
      continue
    rows += 1
    limits = policy.gate.for_tier(record.tier).limits
    found = thresholds.find_reached(limits, gate.score(record.text))
    if found is None:
      passed.append(record)
      continue
    blocked += 1
    moved += found[0] != record.dimension
  return Replay(gate.version, rows, blocked, moved, tuple(passed), others)


def _paths(folder: pathlib.Path) -> list[pathlib.Path]:
  return sorted(p for p in folder.iterdir() if _NAME.fullmatch(p.name))


def _open_private(path: str, flags: int) -> int:
  return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _repair(path: pathlib.Path) -> int:
  """Cuts off an unfinished last line; returns the number of whole lines."""
  path.chmod(0o600)
  data = path.read_bytes()
  whole = data.rfind(b'\n') + 1
  if whole < len(data):
    os.truncate(path, whole)
  return data.count(b'\n')


def _parse(line: bytes) -> Record | None:
  try:
    data: Any = json.loads(line)
    return Record(**data)
  except (ValueError, TypeError):
    return None
