"""What was blocked: the last 10,000 texts on disk, to replay through a gate.

From source 003's runbook: when benign texts are refused, the last 10,000
blocked messages go through the classifier's version before, and the difference
says what the new one did. A record has the score, the dimension, the tier, the
classifier's version, and the owner as an HMAC under the server's key: the same
owner can be told from another, and nobody be named without the key.

Records are lines of JSON in numbered files of a folder that only the server's
user can read. A file takes a tenth of what is kept; the oldest goes once the
others hold enough, so at most 1.1 × `keep` texts are on disk. A kill may lose
the line being written, never one before it. Lines are not flushed to the disk
one by one: a power cut may lose the last.
"""

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
# Characters of a text that are stored: its last ones, as the gate reads it.
LONGEST = 16_000
_NAME = re.compile(r'blocked-(\d{8})\.jsonl')


@dataclasses.dataclass(frozen=True)
class Record:
  """One blocked text.

  Attributes:
    time: when, in seconds of Unix time.
    stage: 'gate', 'prompt' or 'head'.
    tier: 'adult' or 'minor'.
    dimension: what it violates; '' where that is not known.
    score: how much; None where there is no score.
    version: the classifier's.
    owner: HMAC-SHA256 of who wrote it, in hex.
    text: its last `LONGEST` characters.
  """

  time: float
  stage: str
  tier: str
  dimension: str
  score: float | None
  version: str
  owner: str
  text: str


class Replay(NamedTuple):
  """What another version of the gate says of the texts that one blocked.

  Attributes:
    version: the other gate's.
    rows: texts that a gate had blocked.
    blocked: how many of them the other blocks, too.
    moved: how many of those for another dimension.
    passed: the records that it would let pass.
    others: texts blocked by other stages, which no gate can judge.
  """

  version: str
  rows: int
  blocked: int
  moved: int
  passed: tuple[Record, ...]
  others: int


class Blocked:
  """The log of a folder. Threads may share it, processes may not."""

  def __init__(self, folder: str | os.PathLike, key: bytes, keep: int = KEEP):
    """Opens a log, or begins one.

    Args:
      folder: where it is; made if need be, readable by its owner alone.
      key: the server's secret, at least 16 bytes.
      keep: how many texts are kept.

    Raises:
      ValueError: the key is too short, or `keep` is no number above 0.
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
    self._lines = {
      number: _repair(self._path(number)) for number in self._numbers()
    }
    self._file: int | None = None

  def __len__(self) -> int:
    with self._lock:
      return min(self._keep, sum(self._lines.values()))

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
    """Appends a record; for the arguments see `Record`.

    Args:
      owner: who wrote the text; only its HMAC is stored.

    Raises:
      OSError: it cannot be written; the log is as it was before.
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
      files.append(self._opened(), line)
      self._lines[max(self._lines)] += 1

  def owner(self, name: str) -> str:
    """Returns the HMAC by which an owner's records are known."""
    data = name.encode(errors='surrogatepass')
    return hmac.new(self._key, data, hashlib.sha256).hexdigest()

  def records(self) -> Iterator[Record]:
    """Yields the last `keep` records, the oldest first.

    A line that is damaged is left out, and counted in a warning.
    """
    bad = 0
    with contextlib.ExitStack() as stack:
      with self._lock:
        skip = max(0, sum(self._lines.values()) - self._keep)
        # Open files outlast their removal, so others may go on writing.
        opened = [
          (stack.enter_context(open(self._path(number), 'rb')), lines)
          for number, lines in sorted(self._lines.items())
        ]
      for file, lines in opened:
        for line in itertools.islice(file, lines):
          if skip:
            skip -= 1
          elif record := _parse(line):
            yield record
          else:
            bad += 1
    if bad:
      logging.warning('%s: %d lines are damaged.', self._folder, bad)

  def replay(self, gate: gate_lib.Gate, policy: thresholds.Policy) -> Replay:
    """Returns what another gate, with its thresholds, says of the texts."""
    rows = blocked = moved = others = 0
    passed = []
    for record in self.records():
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

  def close(self) -> None:
    """Closes the file; a later `add` opens it again."""
    with self._lock:
      if self._file is not None:
        os.close(self._file)
        self._file = None

  def _opened(self) -> int:
    """Returns the file to append to; a new one where the last is full."""
    last = max(self._lines, default=0)
    if not last or self._lines[last] >= self._per_file:
      if self._file is not None:
        os.close(self._file)
        self._file = None
      last += 1
    if self._file is None:
      flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
      self._file = os.open(self._path(last), flags, 0o600)
      self._lines.setdefault(last, 0)
      self._drop()
    return self._file

  def _drop(self) -> None:
    """Removes the oldest files, as long as the others hold enough."""
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
    found = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
    return sorted(int(match[1]) for match in found if match)


def _repair(path: pathlib.Path) -> int:
  """Cuts a line that a kill left unfinished; returns the lines."""
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
