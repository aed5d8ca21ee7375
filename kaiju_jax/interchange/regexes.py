"""Refuses tokenizers whose regular expressions take too long.

A tokenizer.json comes with a stranger's model and can hold any expression. Some
take a time that grows with the square of a text, or faster, so that one request
would stop a server. So each is tried on texts that such expressions fail on, in
a process of its own with a limit of processor time, before the tokenizer is
used. `refuse_slow` starts this file as that process.

Only the standard library is imported, and tokenizers in the process.
"""

from collections.abc import Iterator
import json
import signal
import subprocess
import sys
import time
from typing import Any

SECONDS = 1.0  # Of processor time, per expression and text.
SIZE = 2**20  # Bytes of a text.
_WHOLE = 300  # Of processor time, of all trials.
# What texts repeat, and what ends them, so that no match reaches the end.
_UNITS = ('a', ' ', '\n', '1', "'", '.', 'é', 'a ', 'a1', ' \n')
_END = '\x07'
_LETTERS = 16  # Further units, from an expression itself.
# Where time is in proportion, the second takes 8 times as long.
_SMALL, _MIDDLE = SIZE // 64, SIZE // 8
_LEAST = 0.001  # Seconds; what takes less is not measured well.


def refuse_slow(content: dict[str, Any]) -> None:
  """Refuses the content of a tokenizer.json with an expression that is slow.

  Raises:
    ValueError: names the expression and the text.
  """
  trials = [
    (pattern, unit)
    for pattern in sorted(
      {
        pattern
        for name in ('normalizer', 'pre_tokenizer', 'decoder')
        for pattern in _list_patterns(content.get(name))
      }
    )
    for unit in _list_units(pattern)
  ]
  is_second = False
  while trials:
    ended = _try_all(trials)
    if ended is None:
      return
    pattern, unit = trials[ended]
    if is_second and not ended:
      raise ValueError(
        f'tokenizer.json: the expression {pattern!r:.80}: takes more than'
        f' {SECONDS:g} s for a text of 1 MB that repeats {unit!r}; its time'
        ' must be in proportion to the text.'
      )
    # Other work slows a processor down; what is slow is slow again.
    trials, is_second = trials[ended:], True


def _try_all(trials: list[tuple[str, str]]) -> int | None:
  """Returns the index of the first trial that took too long; None if none did.

  Raises:
    ValueError: all together took too long.
  """
  ended = subprocess.run(
    [sys.executable, '-I', '-B', __file__],
    input=json.dumps(trials).encode(),
    capture_output=True,
    env={},
  )
  if ended.returncode == -signal.SIGXCPU:
    raise ValueError(
      f'tokenizer.json: {len({one for one, _ in trials})} expressions: their'
      f' trials take more than {_WHOLE} s together; must be fewer.'
    )
  return len(ended.stdout.splitlines()) if ended.returncode else None


def _list_units(pattern: str) -> list[str]:
  """Returns what texts for an expression repeat."""
  letters = sorted({one for one in pattern if one.isalnum()} - {*_UNITS})
  return [*_UNITS, *letters[:_LETTERS]]


def _list_patterns(part: Any) -> Iterator[str]:
  """Yields the regular expressions in a part of a tokenizer.json."""
  if isinstance(part, dict):
    if isinstance(part.get('Regex'), str):
      yield part['Regex']
    for inner in part.values():
      yield from _list_patterns(inner)
  elif isinstance(part, list):
    for inner in part:
      yield from _list_patterns(inner)


def main() -> None:
  """Tries the expressions of stdin; writes a line behind each trial."""
  import resource

  import tokenizers
  from tokenizers import pre_tokenizers

  resource.setrlimit(resource.RLIMIT_CPU, (_WHOLE, _WHOLE + 1))
  for pattern, unit in json.load(sys.stdin):
    try:
      expression = tokenizers.Regex(pattern)
    except Exception:  # What loads the tokenizer says what is wrong with it.
      pass
    else:
      # What matches is removed, so that no list of pieces takes the time.
      split = pre_tokenizers.Split(expression, 'removed')
      _try(split.pre_tokenize_str, unit)
    print(flush=True)


def _try(run, unit: str) -> None:
  """Ends the process if a text of `SIZE` takes more than `SECONDS`."""
  small, middle = (_measure(run, unit, size) for size in (_SMALL, _MIDDLE))
  is_linear = middle <= 2 * (_MIDDLE // _SMALL) * max(small, _LEAST)
  if not is_linear or middle > SECONDS * _MIDDLE / SIZE:
    _measure(run, unit, SIZE)


def _measure(run, unit: str, size: int) -> float:
  text = unit * (size // len(unit.encode())) + _END
  # Its signal ends the process, also within the library.
  signal.setitimer(signal.ITIMER_PROF, SECONDS)
  begun = time.process_time()
  run(text)
  seconds = time.process_time() - begun
  signal.setitimer(signal.ITIMER_PROF, 0)
  return seconds


if __name__ == '__main__':
  main()
