"""Checkpoints: the state, the data's position, and fingerprints of both.

    checkpoints/20/state        the pytree (Orbax)
    checkpoints/20/data         the batches' get_state()
    checkpoints/20/fingerprint  sums over both (fingerprint.py)

While training continues, Orbax writes into a temporary folder and renames it
when everything is on the disk: a kill leaves a whole checkpoint or none. Orbax
does not notice later damage. So reading compares each checkpoint with its
fingerprint, and takes the one before if the latest fails.

A state that holds NaN or an infinity is never saved, so that it takes no finite
state's place.

Several processes write one checkpoint together: each writes its devices' part,
and all call `save` and `restore`. A fingerprint covers whole arrays, so that
all processes agree on it. If one process cannot read its part, all stop.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import json
import logging
import os
import pathlib
import re
import shutil
import time
from typing import Any
from typing import Protocol
from typing import Self
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from kaiju_jax.sharding import processes
from kaiju_jax.storage import addresses
from kaiju_jax.training import agreement
from kaiju_jax.training import fingerprint
from kaiju_jax.training import workdir

_BAD_FOLDER = 'bad_checkpoints'


class Positioned(Protocol):
  """An iterator whose position can be saved and restored."""

  def get_state(self) -> dict[str, Any]:
    """Returns its position, in a form that JSON can hold."""

  def set_state(self, state: dict[str, Any]) -> None:
    """Goes to a position."""


class SaveError(OSError):
  """A checkpoint could not be written; the earlier ones are kept."""


class RestoreError(OSError):
  """There are checkpoints, and none of them can be read."""


class NonFiniteError(ValueError):
  """The state holds NaN or infinities, and was not saved."""


class _Damaged(ValueError):
  """The read values differ from the saved ones, in all processes alike."""


class _Unread(Exception):
  """This process could not read its part; others may have read theirs."""

  def __init__(self, step: int, reason: str):
    super().__init__(reason)
    self.step = step


class Checkpoints:
  """The checkpoints of one workdir, for the processes that train there.

  Args:
    folder: the workdir.
    kept: the number of latest checkpoints to keep.
    say: prints a message for the user.
  """

  def __init__(
    self, folder: pathlib.Path, kept: int, say: Callable[[str], None] = print
  ):
    self._folder = folder / workdir.CHECKPOINTS
    self._bad = folder / _BAD_FOLDER
    self._say = say
    self._saving = None
    logging.getLogger('absl').addFilter(_is_not_told_twice)
    halves = _halves(self._folder) if processes.is_main() else []
    self._halves = [path.name.split('.')[0] for path in halves]
    # Orbax would remove them as well, in a thread that may collide with
    # another process's.
    for half in halves:
      _remove(half)
    processes.barrier('halves removed')
    self._manager = _manager(
      self._folder,
      preservation_policy=ocp.checkpoint_managers.LatestN(kept),
    )

  def __enter__(self) -> Self:
    return self

  def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
    """Waits for a save in progress, except after a KeyboardInterrupt."""
    if kind is None or issubclass(kind, Exception):
      self.wait()
      self._manager.close()

  def restore(self, state: Any, batches: Positioned) -> tuple[Any, int]:
    """Returns the latest whole checkpoint's state and step.

    It also restores the position of `batches`. Without checkpoints it returns
    the given state and 0. Otherwise it deletes the given arrays before it reads
    the stored ones, because a device may not have room for both. Once it has
    found a good checkpoint, it moves later ones to bad_checkpoints/.

    Raises:
      RestoreError: no checkpoint can be read. With a single process none is
        moved; with several, the unreadable one is moved if an earlier one
        exists.
      ValueError: the processes see different checkpoints.
    """
    if self._halves:
      steps = ', '.join(self._halves)
      self._say(f'The save of step {steps} was cut off; it does not count.')
    agreement.check({'checkpoints': sorted(self._manager.all_steps())})
    if not self._manager.all_steps():
      return state, 0
    abstract = _abstract(state)
    _free(state)
    try:
      restored, data, step, bad = _latest(self._manager, abstract, _whole)
    except _Unread as error:
      raise self._left_aside(error.step, str(error)) from error
    for bad_step, reason in bad.items() if processes.is_main() else ():
      moved = self._move_aside(bad_step)
      self._say(
        f'Checkpoint {bad_step} cannot be read ({reason}). It was moved to'
        f' {moved}; going on from checkpoint {step}.'
      )
    processes.barrier('bad checkpoints moved')
    self._manager.reload()
    batches.set_state(data)
    return restored, step

  def save(self, step: int, state: Any, batches: Positioned) -> None:
    """Starts a save; returns as soon as the state may be donated.

    It does nothing if the step is already saved.

    Raises:
      SaveError: this save or the one before it failed.
      NonFiniteError: the state is not finite; nothing was written.
    """
    self.wait()
    if step in self._manager.all_steps():
      return
    data = json.loads(json.dumps(batches.get_state()))
    sums = {'state': fingerprint.fingerprint(state), 'data': _sum(data)}
    if bad := fingerprint.list_nonfinite(sums['state']):
      raise NonFiniteError(_describe_nonfinite(bad, len(sums['state'])))
    self._saving = step
    try:
      self._manager.save(
        step,
        args=ocp.args.Composite(
          state=ocp.args.StandardSave(state),
          data=ocp.args.JsonSave(data),
          fingerprint=ocp.args.JsonSave(sums),
        ),
        force=True,
      )
    except Exception as error:
      raise self._failure(error) from error

  def check(self) -> None:
    """Raises SaveError if a save in progress has failed. Does not wait."""
    if self._saving is not None and not self._manager.is_saving_in_progress():
      self.wait()

  def find_latest(self) -> int | None:
    """Returns the latest whole checkpoint's step; waits for a save first."""
    self.wait()
    return self._manager.latest_step()

  def wait(self) -> None:
    """Waits for a save in progress; raises SaveError if it fails."""
    if self._saving is None:
      return
    try:
      self._manager.wait_until_finished()
    except Exception as error:
      raise self._failure(error) from error
    self._saving = None

  def _failure(self, error: Exception) -> SaveError:
    step, self._saving = self._saving, None
    if processes.is_main():
      for half in _halves(self._folder):  # These may be filling the disk.
        _remove(half)
    self._manager.reload()
    last = self._manager.latest_step()
    kept = (
      'There is no earlier checkpoint; the same command starts anew'
      if last is None
      else f'The last good checkpoint, of step {last}, is kept in'
      f' {self._folder}; the same command goes on from there'
    )
    return SaveError(
      f'Saving step {step} failed: {_reason(error)}. {kept} once the cause is'
      ' removed.'
    )

  def _left_aside(self, step: int, reason: str) -> RestoreError:
    """Returns the error for a checkpoint that this process could not read.

    The other processes wait for this one inside Orbax, or failed as well. No
    process can continue from an earlier checkpoint, but the next start can.
    """
    what = f'Checkpoint {step} cannot be read ({reason}).'
    earlier = [one for one in self._manager.all_steps() if one < step]
    if not earlier:
      return RestoreError(
        f'{what} There is none before it. It was left as it is. To start anew,'
        ' name another --workdir.'
      )
    with contextlib.suppress(FileNotFoundError):  # Another process did it.
      self._move_aside(step)
    return RestoreError(
      f'{what} It was moved to {self._bad}; the same command goes on from'
      f' checkpoint {max(earlier)}.'
    )

  def _move_aside(self, step: int) -> pathlib.Path:
    self._bad.mkdir(exist_ok=True)
    number = 0
    while (target := self._bad / f'{step}.{number}').exists():
      number += 1
    (self._folder / str(step)).rename(target)
    return target


def load(folder: str | os.PathLike[str], state: Any) -> tuple[Any, int]:
  """Returns the latest whole checkpoint's state and step; changes nothing.

  It serves tools that inspect a run, which may still be training. It reads only
  the fields in `state`: `{'params': shapes}` reads no moments of Adam.

  Args:
    folder: the workdir.
    state: a pytree of arrays or shapes (`jax.eval_shape`): the saved state, or
      a dictionary of some of its fields. Arrays come back with the shardings
      given there, or on the default device.

  Raises:
    FileNotFoundError: there is no checkpoint.
    RestoreError: none can be read, or none has such arrays.
    ValueError: `folder` is an address such as gs://….
  """
  addresses.refuse(folder, f'workdir {folder}')
  folder = pathlib.Path(folder) / workdir.CHECKPOINTS
  if not folder.is_dir():
    raise FileNotFoundError(f'{folder}: not found; nothing was saved yet.')
  with _manager(folder, create=False) as manager:
    if not manager.all_steps():
      raise FileNotFoundError(f'{folder}: holds no finished checkpoint.')
    restored, _, step, _ = _latest(manager, _abstract(state), _part)
  return restored, step


def load_step(
  folder: str | os.PathLike[str], state: Any, step: int
) -> tuple[Any, dict[str, Any]]:
  """Returns the state and the batches' position of one step; changes nothing.

  Args:
    folder: the workdir.
    state: the shapes of the whole saved state, with their shardings.
    step: the checkpoint's step.

  Raises:
    FileNotFoundError: there is no such checkpoint.
    RestoreError: it cannot be read.
  """
  folder = pathlib.Path(folder) / workdir.CHECKPOINTS
  if not (folder / str(step)).is_dir():
    raise FileNotFoundError(f'{folder}: holds no checkpoint of step {step}.')
  with _manager(folder, create=False) as manager:
    try:
      return _read(manager, step, _whole(_abstract(state)))
    except Exception as error:
      raise RestoreError(
        f'Checkpoint {folder / str(step)} cannot be read ({_reason(error)}).'
      ) from error


def _manager(folder: pathlib.Path, **options) -> ocp.CheckpointManager:
  return ocp.CheckpointManager(
    folder.resolve(), options=ocp.CheckpointManagerOptions(**options)
  )


def _whole(abstract: Any) -> ocp.args.CheckpointArgs:
  """Returns Orbax's arguments for the whole saved state."""
  return ocp.args.StandardRestore(abstract)


def _part(abstract: Any) -> ocp.args.CheckpointArgs:
  """Returns Orbax's arguments for some fields of the saved state."""
  return ocp.args.PyTreeRestore(
    abstract,
    restore_args=ocp.checkpoint_utils.construct_restore_args(abstract),
    partial_restore=True,
  )


def _latest(
  manager: ocp.CheckpointManager,
  abstract: Any,
  wanted: Callable[[Any], ocp.args.CheckpointArgs],
) -> tuple[Any, dict[str, Any], int, Mapping[int, str]]:
  """Returns state, data position and step, and {bad step: reason}."""
  bad = {}
  for step in sorted(manager.all_steps(), reverse=True):
    try:
      return *_read(manager, step, wanted(abstract)), step, bad
    except Exception as error:
      if jax.process_count() > 1 and not isinstance(error, _Damaged):
        raise _Unread(step, _reason(error)) from error
      bad[step] = _reason(error)
  lines = [f'  {step}: {reason}' for step, reason in bad.items()]
  raise RestoreError(
    f'None of the checkpoints in {manager.directory} can be read:\n'
    + '\n'.join(lines)
    + '\nThey were left as they are. To start anew, name another --workdir.'
  )


def _read(
  manager: ocp.CheckpointManager, step: int, state: ocp.args.CheckpointArgs
) -> tuple[Any, dict[str, Any]]:
  read = manager.restore(
    step,
    args=ocp.args.Composite(
      state=state,
      data=ocp.args.JsonRestore(),
      fingerprint=ocp.args.JsonRestore(),
    ),
  )
  sums, kept = fingerprint.fingerprint(read.state), read.fingerprint['state']
  if bad := fingerprint.list_nonfinite(sums):
    raise _Damaged(_describe_nonfinite(bad, len(sums)))
  wrong = [name for name in sums if sums[name] != kept.get(name)]
  if wrong:
    raise _Damaged(
      f'{len(wrong)} of {len(sums)} arrays differ from what was saved, as'
      f' {wrong[0]}: {sums[wrong[0]]}, saved as {kept.get(wrong[0])}'
    )
  if _sum(read.data) != read.fingerprint['data']:
    raise _Damaged("the data's position differs from what was saved")
  return read.state, read.data


def _abstract(state: Any) -> Any:
  """Returns the shapes, dtypes and shardings that Orbax restores into."""
  (device,) = jnp.zeros(()).devices()  # `jax.default_device` may name it.
  here = jax.sharding.SingleDeviceSharding(device)

  def of(leaf):
    sharding = getattr(leaf, 'sharding', None) or here
    return jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype, sharding=sharding)

  return jax.tree.map(of, state)


def _free(state: Any) -> None:
  for leaf in jax.tree.leaves(state):
    if isinstance(leaf, jax.Array) and not leaf.is_deleted():
      leaf.delete()


def _halves(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns the temporary folders of unfinished saves."""
  paths = sorted(folder.glob('*'))
  return [path for path in paths if ocp.utils.is_tmp_checkpoint(path)]


def _remove(half: pathlib.Path) -> None:
  """Removes a folder that threads of a failed save may still write into."""
  for _ in range(20):
    shutil.rmtree(half, ignore_errors=True)
    if not half.exists():
      return
    time.sleep(0.1)


def _describe_nonfinite(paths: Sequence[str], count: int) -> str:
  return (
    f'{len(paths)} of {count} arrays hold NaN or an infinity, as {paths[0]}'
  )


def _sum(data: Any) -> str:
  text = json.dumps(data, sort_keys=True)
  return f'{zlib.crc32(text.encode()):08x}'


def _reason(error: Exception) -> str:
  """Returns the cause in one line; TensorStore's own messages are very long."""
  while error.__cause__ is not None:
    error = error.__cause__
  code = re.search(r"os_error_code='(\d+)'", str(error))
  if code:
    return os.strerror(int(code[1]))
  line = str(error).strip().partition('\n')[0].rstrip('.')
  line = line or type(error).__name__
  return line if len(line) <= 200 else f'{line[:200]}…'


def _is_not_told_twice(record: logging.LogRecord) -> bool:
  """Drops the tracebacks that Orbax logs from each thread of a failed save."""
  return not (record.exc_info and f'{os.sep}orbax{os.sep}' in record.pathname)
