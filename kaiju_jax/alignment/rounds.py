"""Online rounds: draw, choose, read the reference, train, look.

    OUT/align.json           the command's settings, and hashes of what it reads
    OUT/reference/           the first model's int8 export, frozen; adapters
                             have their base instead, where it lies
    OUT/held_out.jsonl       the first model's replies to held-out prompts
    OUT/rounds/01/           a round, the journal:
      swipes.jsonl             its prompts, their replies, and which was kept
      reference.npz            the reference's log-probabilities, by hash
      run/                     the training's workdir, which begins with the
                               parameters of the round before
      round.json               written last: what was read of its model
      last.jsonl               of the last good round, its model's replies to
                               all held-out prompts
    OUT/model                a link to the run of the last good round
    OUT/report.json          all readings, and the win rate

The same command goes on where it was stopped, to the same bytes, and with more
rounds to those of a command that had as many at first.
"""

from collections.abc import Iterator
from collections.abc import MutableMapping
from collections.abc import Sequence
import dataclasses
import os
import pathlib
import sys
from typing import Any

import numpy as np

from kaiju_jax.alignment import config
from kaiju_jax.alignment import drawing
from kaiju_jax.alignment import guards
from kaiju_jax.alignment import prompts as prompts_lib
from kaiju_jax.alignment import settings as settings_lib
from kaiju_jax.alignment import watch as watch_lib
from kaiju_jax.runs import exchange
from kaiju_jax.runs import load
from kaiju_jax.runs import reference as reference_lib
from kaiju_jax.runs import train
from kaiju_jax.storage import files
from kaiju_jax.storage import locks
from kaiju_jax.training import batch_schedule
from kaiju_jax.training import divergence
from kaiju_jax.training import experiment as experiment_lib

REPORT, ROUND = 'report.json', 'round.json'
# What a seed is for (`drawing.seed_of`).
_SWIPES, _FIRST, _WATCHED, _LAST, _CHOICE, _CHOICE_HELD = range(6)


def run(
  settings: config.Settings,
  experiment: experiment_lib.Experiment,
  out: str | os.PathLike,
  say: Any = print,
  programs: MutableMapping[Any, Any] | None = None,
) -> dict[str, Any]:
  """Runs the rounds that are left, and returns the report.

  Args:
    settings: the settings.
    experiment: the training of a round; its `begin_with`, data and objective's
      reference are set here.
    out: the folder of all rounds.
    say: prints a line per round.
    programs: compiled functions that calls in one process share: pass the same
      dictionary, empty at first, to each.

  Raises:
    OSError, ValueError: settings, model, prompts or folder are unusable, which
      is checked before anything compiles; or as `train.train`.
    BlockingIOError: another process writes to this folder.
  """
  out = pathlib.Path(out)
  rounds = Rounds(settings, experiment, out, programs)
  files.make_folder(out)
  with locks.hold(out / 'lock', f'folder {out}', 'aligns', '--out'):
    rounds.begin()
    history: list[dict[str, Any]] = []
    stop = ''
    for number in range(1, settings.rounds + 1):
      record = rounds.play(number, history)
      history.append(record)
      say(describe(record))
      stop = record['stop']
      if stop:
        break
    return rounds.finish(history, stop)


def describe(record: dict[str, Any]) -> str:
  """Returns a round's readings in a line."""
  words = [f'round {record["round"]}: {record["groups"]} choices']
  if record['kl'] is not None:
    words.append(f'KL {record["kl"]:.2f} nats')
  if record['length'] is not None:
    words.append(f'length × {record["length"]:.2f}')
  if record['accuracy'] is not None:
    words.append(f'held-out choices {100 * record["accuracy"]:.0f} %')
  if record['win'] is not None:
    words.append(f'wins {100 * record["win"]["value"]:.0f} %')
  if record['stop']:
    words.append(f'stopped by {record["stop"]}')
  return ', '.join(words)


class Rounds:
  """The rounds of one folder."""

  def __init__(
    self,
    settings: config.Settings,
    experiment: experiment_lib.Experiment,
    out: pathlib.Path,
    programs: MutableMapping[Any, Any] | None = None,
  ):
    """Reads prompts and model; compiles and writes nothing."""
    config.check(settings)
    self._settings, self._out = settings, out
    parts = settings_lib.read(settings, experiment)
    self._first, self._experiment = parts.first, parts.experiment
    self._format, self._user, self._log = parts.format, parts.user, parts.log
    self._prompts, self._held_count = parts.prompts, parts.held
    self._watched, self._described = parts.watched, parts.described
    settings_lib.check(out, self._described)
    length, longest = self._experiment.data.length, parts.longest
    self._programs = {} if programs is None else programs
    shape = length, longest, settings.tokens, settings.temperature
    # Models of one kind draw and read by the same compiled functions.
    kind = 'align', repr(self._first.config), repr(self._experiment.lora)
    kind += self._first.tokenizer, *shape
    if kind not in self._programs:
      sizes = longest + settings.tokens, *shape[2:]
      self._programs[kind] = (
        drawing.Drawer(self._format, *sizes),
        reference_lib.Reader(self._first.config, length),
      )
    self._drawer, self._reader = self._programs[kind]

  def begin(self) -> None:
    """Writes what all rounds share, where it is missing."""
    files.write_json(self._out / settings_lib.SETTINGS, self._described)
    self._reference = self._first
    # New adapters change nothing: the reference is their base.
    self._digest = self._described['model_digest']
    if not self._experiment.lora.rank:
      if not (self._out / 'reference').exists():
        exchange.export(self._settings.model, self._out / 'reference', 'kaiju')
      self._reference = load.from_export(self._out / 'reference')
      self._digest = load.digest(self._reference)
    path = self._out / 'held_out.jsonl'
    if not path.exists():
      self._drawer.use(self._first)
      files.write_json_lines(path, map(watch_lib.plain, self._draw_held()))
    found = files.parse_json_lines(path, watch_lib.parse)
    held = zip(self._prompts[: self._held_count], found, strict=True)
    self._held = [watch_lib.Held(prompt, *parts) for prompt, parts in held]
    self._watch = watch_lib.Watch(
      self._reference, self._reader, self._format, self._held[: self._watched]
    )

  def play(
    self, number: int, history: Sequence[dict[str, Any]]
  ) -> dict[str, Any]:
    """Returns a round's record; plays what is left of it.

    Args:
      number: the round, from 1 on.
      history: the records of those before it.
    """
    folder = self._folder(number)
    if (folder / ROUND).exists():
      return files.read_json(folder / ROUND)
    files.make_folder(folder)
    counts = self._swipe(number, folder / 'swipes.jsonl')
    record = {'round': number, **counts, 'kl': None, 'length': None}
    record |= {'accuracy': None, 'cut': 0, 'win': None, 'stop': ''}
    if counts['groups'] < self._experiment.data.batch:
      record['stop'] = f'choices: {counts["groups"]} in a whole round'
      files.write_json(folder / ROUND, record)
      return record
    reference_lib.write(
      self._reference,
      str(folder / 'swipes.jsonl'),
      folder / 'reference.npz',
      self._experiment.data.length,
      reader=self._reader,
      digest=self._digest,
    )
    try:
      self._train(number, folder, counts)
    except divergence.Diverged as error:
      print(error, file=sys.stderr)
      record['stop'] = f'divergence at step {error.step}'
      files.write_json(folder / ROUND, record)
      return record
    readings, others = self._look(number, folder)
    record |= {**others, **readings._asdict()}
    if self._settings.is_guarded:
      seen = [
        guards.Readings(*(one[name] for name in guards.Readings._fields))
        for one in (*history, record)
      ]
      record['stop'] = guards.find_fault(seen, self._settings.limits)
    files.write_json(folder / ROUND, record)
    return record

  def finish(
    self, history: Sequence[dict[str, Any]], stop: str
  ) -> dict[str, Any]:
    """Links the last good round's model, and returns the report, written."""
    good = len(history) - bool(stop)
    model = self._folder(good) / 'run' if good else None
    link = self._out / 'model'
    with files.replacing(link) as partial:
      target = self._settings.model if model is None else model
      partial.symlink_to(os.path.relpath(target, self._out))
    report = {
      'stop': stop,
      'good': good,
      'win': None,
      'rounds': list(history),
    }
    if self._user is not None and model is not None:
      report['win'] = self._compare_last(good, model).describe()
    files.write_json(self._out / REPORT, report)
    return report

  def _compare_last(self, good: int, model: pathlib.Path) -> watch_lib.Wins:
    """Returns the wins of a round's model on all held-out prompts."""
    path = self._folder(good) / 'last.jsonl'
    if not path.exists():
      self._drawer.use(load.from_workdir(model))
      asked = [
        (one.prompt, self._seed(_LAST, good, n, 0))
        for n, one in enumerate(self._held)
      ]
      files.write_json_lines(path, map(drawing.plain, self._drawer.draw(asked)))
    replies = list(files.parse_json_lines(path, drawing.parse))
    return watch_lib.compare(
      self._user,
      [one.prompt for one in self._held],
      replies,
      [one.replies[0] for one in self._held],
    )

  def _draw_held(self) -> Iterator[watch_lib.Held]:
    """Yields the held-out prompts with the first model's replies."""
    settings = self._settings
    counts = [
      settings.swipes if n < self._watched and self._log is None else 1
      for n in range(self._held_count)
    ]
    asked = [
      (self._prompts[n], self._seed(_FIRST, 0, n, k))
      for n, count in enumerate(counts)
      for k in range(count)
    ]
    # Other users ask the first model the same.
    kind = self._drawer, self._described['model_digest'], tuple(asked)
    if kind not in self._programs:
      self._programs[kind] = self._drawer.draw(asked)
    if self._user is not None:
      pairs = zip(asked, self._programs[kind], strict=True)
      self._user.read((one, reply.content) for (one, _), reply in pairs)
    replies = iter(self._programs[kind])
    for n, count in enumerate(counts):
      own = tuple(next(replies) for _ in range(count))
      prompt, group, kept = self._prompts[n], (), None
      if self._log is not None:
        _, group, kept = self._log.held_out[n]
      elif n < self._watched:
        rng = self._rng(_CHOICE_HELD, 0, n)
        group, kept = self._choose(rng, prompt, own)
      yield watch_lib.Held(prompt, own, group, kept)

  def _choose(
    self,
    rng: np.random.Generator,
    prompt: prompts_lib.Prompt,
    replies: Sequence[drawing.SampledReply],
  ) -> tuple[tuple[str, ...], int | None]:
    """Returns the different usable replies, and which of them is kept."""
    usable = (one.content for one in replies if one.is_usable)
    texts = tuple(dict.fromkeys(usable))
    return texts, self._user.choose(rng, prompt, texts)

  def _swipe(self, number: int, path: pathlib.Path) -> dict[str, int]:
    """Writes a round's choices where there are none, and returns counts."""
    settings = self._settings
    if self._log is not None:
      lines = self._log.lines
      first = (number - 1) * settings.groups
      count = min(settings.groups, len(lines))
      chosen = [lines[(first + n) % len(lines)] for n in range(count)]
      if not path.exists():
        files.write_json_lines(path, chosen)
      return {'groups': count, 'ties': 0, 'unusable': 0}
    counts_path = path.with_name('counts.json')
    if not counts_path.exists():
      lines, counts = self._draw_round(number)
      files.write_json_lines(path, lines)
      files.write_json(counts_path, counts)
    return files.read_json(counts_path)

  def _draw_round(
    self, number: int
  ) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Returns a round's lines of choices, and counts."""
    settings = self._settings
    self._drawer.use(self._model_before(number))
    pool = self._prompts[self._held_count :]
    first = (number - 1) * settings.groups
    asked = [pool[(first + n) % len(pool)] for n in range(settings.groups)]
    drawn = self._drawer.draw(
      [
        (prompt, self._seed(_SWIPES, number, n, k))
        for n, prompt in enumerate(asked)
        for k in range(settings.swipes)
      ]
    )
    self._user.read(
      (asked[n // settings.swipes], one.content)
      for n, one in enumerate(drawn)
      if one.is_usable
    )
    lines = []
    counts = {'groups': 0, 'ties': 0, 'unusable': 0}
    for n, prompt in enumerate(asked):
      own = drawn[n * settings.swipes : (n + 1) * settings.swipes]
      counts['unusable'] += sum(not one.is_usable for one in own)
      texts, kept = self._choose(self._rng(_CHOICE, number, n), prompt, own)
      counts['groups' if kept is not None else 'ties'] += 1
      if kept is not None:
        lines.append(self._line(prompt, own, texts, kept))
    return lines, counts

  def _line(self, prompt, replies, texts, kept: int) -> dict[str, Any]:
    """Returns a line of choices; each reply's value says why it was kept."""
    first = {one.content: one for one in reversed(replies)}
    messages = [{'role': role, 'content': x} for role, x in prompt.messages]
    choices = [
      {
        'content': text,
        'kept': n == kept,
        'value': self._user.rate(prompt, text),
        'seed': first[text].seed,
        'tokens': first[text].tokens,
      }
      for n, text in enumerate(texts)
    ]
    messages.append({'role': 'assistant', 'replies': choices})
    return {'messages': messages, 'prompt': prompt.name}

  def _train(
    self, number: int, folder: pathlib.Path, counts: dict[str, int]
  ) -> None:
    """Trains a round's model, or goes on with it.

    Where few prompts have a choice, a round has fewer steps in proportion, so
    that it reads its choices equally often.
    """
    loop, chosen = self._experiment.loop, counts['groups']
    steps = -(-loop.steps * chosen // (chosen + counts['ties']))
    experiment = dataclasses.replace(
      self._experiment,
      loop=dataclasses.replace(loop, steps=steps),
      begin_with=str(self._path_before(number)),
      data=dataclasses.replace(
        self._experiment.data,
        path=str(folder / 'swipes.jsonl'),
        reference=str(folder / 'reference.npz'),
      ),
    )
    steps = batch_schedule.schedule_of(experiment).steps
    state = train.train(experiment, folder / 'run', programs=self._programs)
    if int(state.step) < steps:
      raise KeyboardInterrupt

  def _look(
    self, number: int, folder: pathlib.Path
  ) -> tuple[guards.Readings, dict[str, Any]]:
    """Returns what is read of a round's model."""
    loaded = load.from_workdir(folder / 'run')
    self._drawer.use(loaded)
    held = self._held[: self._watched]
    replies = self._drawer.draw(
      [
        (one.prompt, self._seed(_WATCHED, number, n, 0))
        for n, one in enumerate(held)
      ]
    )
    readings, others = self._watch.read(loaded, replies)
    others['model'] = load.digest(loaded)
    others['win'] = None
    if self._user is not None:
      found = [one.prompt for one in held]
      theirs = [one.replies[0] for one in held]
      wins = watch_lib.compare(self._user, found, replies, theirs)
      others['win'] = wins.describe()
    return readings, others

  def _folder(self, number: int) -> pathlib.Path:
    return self._out / 'rounds' / f'{number:02d}'

  def _path_before(self, number: int) -> str | pathlib.Path:
    if number == 1:
      return self._settings.model
    return self._folder(number - 1) / 'run'

  def _model_before(self, number: int) -> load.Loaded:
    if number == 1:
      return self._first
    return load.from_workdir(self._path_before(number))

  def _seed(self, *parts: int) -> int:
    return drawing.seed_of(self._settings.seed, *parts)

  def _rng(self, *parts: int) -> np.random.Generator:
    return np.random.default_rng((self._settings.seed, *parts))
