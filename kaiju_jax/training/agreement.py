"""Checks before the first step that all processes run the same experiment.

Otherwise the processes would compile different programs and wait for each other
forever, or train on a mixture that no config describes.
"""

import hashlib
import json
import pathlib
import secrets
import time
from typing import Any

from kaiju_jax.sharding import processes
from kaiju_jax.storage import strict

_SECONDS = 10.0


def check(what: dict[str, Any]) -> None:
  """Refuses values that differ between processes; all must call it.

  Args:
    what: this process's values, by nested names.

  Raises:
    ValueError: they differ; the message names two processes, and each field
      with both values. All processes raise it.
  """
  text = json.dumps(what, sort_keys=True)
  digests = processes.gather(hashlib.sha256(text.encode()).hexdigest())
  if len(set(digests)) == 1:
    return
  texts = processes.gather(text)
  other = next(i for i, one in enumerate(texts) if one != texts[0])
  differences = strict.differences(
    json.loads(texts[0]), json.loads(texts[other])
  )
  lines = [
    f'  {name}: {ours!r} in process 0, {theirs!r} in process {other}'
    for name, (ours, theirs) in differences.items()
  ]
  raise ValueError(
    f'process 0 and process {other} of {len(texts)} do not run the same:\n'
    + '\n'.join(lines)
  )


def check_shared(folder: pathlib.Path) -> None:
  """Refuses a folder that the processes do not share.

  Otherwise each would write its part of a checkpoint to its own disk.

  Raises:
    ValueError: some processes do not see what process 0 writes there. All
      processes raise it.
  """
  token = processes.gather(secrets.token_hex(8))[0]
  proof = folder / f'.seen-{token}'
  if processes.is_main():
    proof.touch()
  processes.barrier('proof written')
  seen = processes.gather('yes' if _appears(proof) else 'no')
  if processes.is_main():
    proof.unlink(missing_ok=True)
  blind = [i for i, answer in enumerate(seen) if answer == 'no']
  if blind:
    raise ValueError(
      f'workdir {folder}: process {blind} of {len(seen)} does not see what'
      ' process 0 writes there; it must be a folder that all hosts share.'
    )


def _appears(path: pathlib.Path) -> bool:
  """Returns whether a file exists, after up to ten seconds of waiting.

  Network file systems may take a moment.
  """
  deadline = time.monotonic() + _SECONDS
  while not path.exists():
    if time.monotonic() > deadline:
      return False
    time.sleep(0.1)
  return True
