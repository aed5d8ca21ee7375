"""Keeps the journal of a synthesis: one line per passage, appended whole.

    {"settings": {…}, "generator": "…"}                      the first line
    {"passage": NAME, "variations": [{…, "verdict": …}, …]}  one per passage

A kill leaves at most one incomplete line. The next start drops it and asks
about its passage again, which gives the same variations. Rejected variations
stay in the journal with their verdicts, so that the rules can be audited.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import os
import pathlib
from typing import Any
from typing import Self

from kaiju_jax.storage import files
from kaiju_jax.storage import strict
from kaiju_jax.synthesis import settings as settings_lib
from kaiju_jax.synthesis import variations as variations_lib

Judged = list[tuple[variations_lib.Variation, str]]


class Journal:
  """Reads a journal, and appends to it.

  Args:
    path: the file; made where it does not exist.
    head: the synthesis's settings. A journal with another head is refused.

  Attributes:
    judged: (variation, verdict) of each passage that is done.

  Raises:
    OSError: the file cannot be read or written.
    ValueError: a journal of another synthesis, or a damaged line.
  """

  def __init__(self, path: pathlib.Path, head: Mapping[str, Any]):
    self._path = path
    self.judged: dict[str, Judged] = {}
    with files.writing(str(path)):
      self._file = os.open(
        path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
      )
    try:
      self._read(json.loads(json.dumps(head)))
    except BaseException:
      os.close(self._file)
      raise

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_: object) -> None:
    os.close(self._file)

  def append(self, passage: str, judged: Judged) -> None:
    """Records a passage's variations."""
    self._write(
      {
        'passage': passage,
        'variations': [
          {**dataclasses.asdict(one), 'verdict': verdict}
          for one, verdict in judged
        ],
      }
    )
    self.judged[passage] = judged

  def _read(self, head) -> None:
    data = self._path.read_bytes()
    whole = data[: data.rfind(b'\n') + 1]
    if len(whole) < len(data):
      os.ftruncate(self._file, len(whole))
    lines = whole.splitlines()
    if not lines:
      self._write(head)
      return
    head, held = _fill(head), _fill(self._parsed(lines[0], 1))
    if held != head:
      differing = sorted(
        name
        for name in head.keys() | held.keys()
        if head.get(name) != held.get(name)
      )
      raise ValueError(
        f'{self._path}: the journal of another synthesis; it differs in'
        f' {", ".join(differing)}. Name another --out, or delete the journal.'
      )
    for number, line in enumerate(lines[1:], 2):
      record = self._parsed(line, number)
      try:
        self.judged[record['passage']] = _judge(record['variations'])
      except (KeyError, TypeError) as error:
        raise ValueError(
          f'{self._path}, line {number}: not a passage and its variations.'
        ) from error

  def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
    try:
      return json.loads(line)
    except ValueError as error:
      raise ValueError(
        f'{self._path}, line {number}: not JSON ({error}).'
      ) from error

  def _write(self, record: Mapping[str, Any]) -> None:
    line = json.dumps(record, allow_nan=False).encode() + b'\n'
    with files.writing(str(self._path)):
      files.append(self._file, line)


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a settings' fields as a head holds them; JSON has no infinity."""
  return {
    name: str(value) if isinstance(value, float) else value
    for name, value in settings.items()
  }


def _fill(head: Mapping[str, Any]) -> Mapping[str, Any]:
  """Returns a head with the defaults of settings that it is older than."""
  settings = strict.fill(settings_lib.Settings, head.get('settings', {}))
  return {**head, 'settings': plain(settings)}


def _judge(records: Sequence[dict[str, Any]]) -> Judged:
  judged = []
  for record in records:
    fields = dict(record)
    verdict = fields.pop('verdict')
    judged.append((variations_lib.Variation(**fields), verdict))
  return judged
