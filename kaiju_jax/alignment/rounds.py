"""Trains a model on choices between its own replies, round by round.

In a round the model of the previous round replies several times to each prompt
("swipes"), and a simulated user keeps one reply of each group; or the choices
are recorded feedback. The model then trains on the choices, held near a frozen
copy of the first model (the reference), and is evaluated on held-out prompts.
Rerun the command to resume; results are byte-identical to an uninterrupted run,
also if you raise `rounds`.

    OUT/align.json           the settings, and hashes of their inputs
    OUT/reference/           the frozen int8 export of the first model; absent
                             with LoRA, whose base model is the reference
    OUT/held_out.jsonl       the first model's replies to held-out prompts
    OUT/rounds/01/           one round:
      swipes.jsonl             the prompts that have a choice, and their replies
      counts.json              how many have one; absent with feedback
      reference.npz            the reference's log-probability of each reply
      run/                     the training's workdir; it begins with the
                               previous round's parameters
      round.json               the round's record, written last
      last.jsonl               of the last good round: its model's replies to
                               all held-out prompts
    OUT/model                a link to the last good round's run
    OUT/report.json          the records of all rounds, and the win rate
"""

from collections.abc import Callable
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
from kaiju_jax.alignment import evaluate
from kaiju_jax.alignment import guards
from kaiju_jax.alignment import prompts as prompts_lib
from kaiju_jax.alignment import replies as replies_lib
from kaiju_jax.alignment import settings as settings_lib
from kaiju_jax.data import reading
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
# First part of each seed: the draw it is for.
_SWIPES, _BASELINE, _ROUND_EVAL, _FINAL_EVAL, _CHOICE, _CHOICE_HELD = range(6)


def run(
  settings: config.Settings,
  experiment: experiment_lib.Experiment,
  out: str | os.PathLike[str],
  log: Callable[[str], Any] = print,
  cache: MutableMapping[Any, Any] | None = None,
) -> dict[str, Any]:
  """Runs the rounds that `out` lacks, and returns the content of report.json.

  Args:
    settings: of the rounds.
    experiment: the training of a round; model, source of the data, reference
      and `begin_with` are set here.
    out: the folder of all rounds.
    log: gets a line of text per round.
    cache: compiled functions and the first model's replies. Pass one dict,
      empty at first, to several calls that shall share them.

  Raises:
    OSError, ValueError: settings, model, prompts or folder are unusable, which
      is checked before anything compiles; or as `train.train`.
    KeyboardInterrupt: training was stopped; another call resumes it.
    BlockingIOError: another process writes to this folder.
  """
  rounds = _Rounds(settings, experiment, pathlib.Path(out), cache)
  files.make_folder(rounds.out)
  with locks.hold(rounds.out / 'lock', f'folder {out}', 'aligns', '--out'):
    rounds.prepare()
    records: list[dict[str, Any]] = []
    for number in range(1, settings.rounds + 1):
      records.append(rounds.run_round(number, records))
      log(_summarize(records[-1]))
      if records[-1]['stop']:
        break
    return rounds.write_report(records)


def _summarize(record: dict[str, Any]) -> str:
  """Returns a round's record as one line of text."""
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


class _Rounds:
  """The rounds of one folder."""

  def __init__(self, settings, experiment, out: pathlib.Path, cache=None):
    """Loads and checks the inputs; compiles and writes nothing."""
    config.check(settings)
    self.out, self._settings = out, settings
    self._inputs = inputs = settings_lib.read(settings, experiment)
    settings_lib.check_folder(out, inputs.described)
    self._user = inputs.user
    length = inputs.experiment.data.length
    self._cache = {} if cache is None else cache
    sampling = settings.tokens, settings.temperature
    # Models of one kind share the compiled functions.
    kind = 'align', repr(inputs.first.config), repr(inputs.experiment.lora)
    kind += inputs.first.tokenizer, length, inputs.longest, *sampling
    if kind not in self._cache:
      self._cache[kind] = (
        replies_lib.ReplySampler(
          inputs.format, inputs.longest + settings.tokens, *sampling
        ),
        reference_lib.Reader(inputs.first.config, length),
      )
    self._sampler, self._reader = self._cache[kind]

  def prepare(self) -> None:
    """Writes and loads what all rounds share."""
    inputs = self._inputs
    files.write_json(self.out / settings_lib.SETTINGS, inputs.described)
    self._reference = inputs.first
    # New adapters change no logit: the reference is their base.
    self._reference_digest = inputs.described['model_digest']
    if not inputs.experiment.lora.rank:
      if not (self.out / 'reference').exists():
        exchange.export(self._settings.model, self.out / 'reference', 'kaiju')
      self._reference = load.from_export(self.out / 'reference')
      self._reference_digest = load.digest(self._reference)
    path = self.out / 'held_out.jsonl'
    if not path.exists():
      self._sampler.use(inputs.first)
      lines = map(evaluate.to_json, self._sample_held_out())
      files.write_json_lines(path, lines)
    found = reading.parse_lines(path, evaluate.parse)
    held_out = zip(inputs.prompts[: inputs.held_out], found, strict=True)
    self._held_out = [evaluate.HeldOut(one, *rest) for one, rest in held_out]
    self._evaluator = evaluate.Evaluator(
      self._reference,
      self._reader,
      inputs.format,
      self._held_out[: inputs.watched],
    )

  def run_round(
    self, number: int, records: Sequence[dict[str, Any]]
  ) -> dict[str, Any]:
    """Runs or resumes round `number`, from 1; `records` are of earlier ones."""
    folder = self._folder(number)
    if not (folder / ROUND).exists():
      files.make_folder(folder)
      files.write_json(folder / ROUND, self._run(number, folder, records))
    return files.read_json(folder / ROUND)

  def _run(
    self, number: int, folder: pathlib.Path, records: Sequence[dict[str, Any]]
  ) -> dict[str, Any]:
    """Samples or takes choices, trains, evaluates; returns the record."""
    counts = self._write_choices(number, folder / 'swipes.jsonl')
    record = {'round': number, **counts, 'kl': None, 'length': None}
    record |= {'accuracy': None, 'cut': 0, 'win': None, 'stop': ''}
    if counts['groups'] < self._inputs.experiment.data.batch:
      stop = f'choices: {counts["groups"]} in a whole round'
      return record | {'stop': stop}
    reference_lib.write(
      self._reference,
      str(folder / 'swipes.jsonl'),
      folder / 'reference.npz',
      self._inputs.experiment.data.length,
      reader=self._reader,
      digest=self._reference_digest,
    )
    try:
      self._train(number, folder, counts)
    except divergence.Diverged as error:
      print(error, file=sys.stderr)
      return record | {'stop': f'divergence at step {error.step}'}
    readings, others = self._evaluate(number, folder)
    record |= {**others, **readings._asdict()}
    if self._settings.is_guarded:
      history = [
        guards.Readings(*(one[name] for name in guards.Readings._fields))
        for one in (*records, record)
      ]
      record['stop'] = guards.find_fault(history, self._settings.limits)
    return record

  def write_report(self, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Links the last good model, or the first; returns the report."""
    stop = records[-1]['stop']
    good = len(records) - bool(stop)
    target = self._folder(good) / 'run' if good else self._settings.model
    with files.replacing(self.out / 'model') as partial:
      partial.symlink_to(os.path.relpath(target, self.out))
    report = {'stop': stop, 'good': good, 'win': None, 'rounds': list(records)}
    if self._user is not None and good:
      report['win'] = self._count_final_wins(good).describe()
    files.write_json(self.out / REPORT, report)
    return report

  def _count_final_wins(self, good: int) -> evaluate.Wins:
    """Compares the last good round with the first model on all prompts."""
    path = self._folder(good) / 'last.jsonl'
    if not path.exists():
      self._sampler.use(load.from_workdir(self._folder(good) / 'run'))
      asked = [
        (one.prompt, self._seed(_FINAL_EVAL, good, n, 0))
        for n, one in enumerate(self._held_out)
      ]
      replies = self._sampler.sample(asked)
      files.write_json_lines(path, (one._asdict() for one in replies))
    replies = list(reading.parse_lines(path, replies_lib.parse))
    return evaluate.count_wins(self._user, self._held_out, replies)

  def _sample_held_out(self) -> Iterator[evaluate.HeldOut]:
    """Yields the held-out prompts with the first model's replies."""
    settings, inputs = self._settings, self._inputs
    counts = [
      settings.swipes if n < inputs.watched and inputs.feedback is None else 1
      for n in range(inputs.held_out)
    ]
    asked = [
      (inputs.prompts[n], self._seed(_BASELINE, 0, n, k))
      for n, count in enumerate(counts)
      for k in range(count)
    ]
    # The first replies are the same for all users.
    kind = self._sampler, inputs.described['model_digest'], tuple(asked)
    if kind not in self._cache:
      self._cache[kind] = self._sampler.sample(asked)
    if self._user is not None:
      pairs = zip(asked, self._cache[kind], strict=True)
      self._user.prefetch((one, reply.content) for (one, _), reply in pairs)
    replies = iter(self._cache[kind])
    for n, count in enumerate(counts):
      own = tuple(next(replies) for _ in range(count))
      prompt, group, kept = inputs.prompts[n], (), None
      if inputs.feedback is not None:
        _, group, kept = inputs.feedback.held_out[n]
      elif n < inputs.watched:
        rng = self._rng(_CHOICE_HELD, 0, n)
        group, kept = self._choose(rng, prompt, own)
      yield evaluate.HeldOut(prompt, own, group, kept)

  def _choose(
    self,
    rng: np.random.Generator,
    prompt: prompts_lib.Prompt,
    replies: Sequence[replies_lib.SampledReply],
  ) -> tuple[tuple[str, ...], int | None]:
    """Returns the distinct usable replies, and which one the user keeps."""
    usable = (one.content for one in replies if one.is_usable)
    texts = tuple(dict.fromkeys(usable))
    return texts, self._user.choose(rng, prompt, texts)

  def _write_choices(self, number: int, path: pathlib.Path) -> dict[str, int]:
    """Writes a round's choices unless they exist; returns their counts."""
    feedback = self._inputs.feedback
    if feedback is None:
      counts_path = path.with_name('counts.json')
      if not counts_path.exists():
        lines, counts = self._sample_choices(number)
        files.write_json_lines(path, lines)
        files.write_json(counts_path, counts)
      return files.read_json(counts_path)
    lines = feedback.lines
    first = (number - 1) * self._settings.groups
    count = min(self._settings.groups, len(lines))
    if not path.exists():
      chosen = [lines[(first + n) % len(lines)] for n in range(count)]
      files.write_json_lines(path, chosen)
    return {'groups': count, 'ties': 0, 'unusable': 0}

  def _sample_choices(
    self, number: int
  ) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Returns sampled choices, as lines of swipes.jsonl, and counts.json."""
    settings = self._settings
    before = self._inputs.first
    if number > 1:
      before = load.from_workdir(self._initial_weights_path(number))
    self._sampler.use(before)
    pool = self._inputs.prompts[self._inputs.held_out :]
    first = (number - 1) * settings.groups
    asked = [pool[(first + n) % len(pool)] for n in range(settings.groups)]
    sampled = self._sampler.sample(
      [
        (prompt, self._seed(_SWIPES, number, n, k))
        for n, prompt in enumerate(asked)
        for k in range(settings.swipes)
      ]
    )
    self._user.prefetch(
      (asked[n // settings.swipes], one.content)
      for n, one in enumerate(sampled)
      if one.is_usable
    )
    lines = []
    counts = {'groups': 0, 'ties': 0, 'unusable': 0}
    for n, prompt in enumerate(asked):
      own = sampled[n * settings.swipes : (n + 1) * settings.swipes]
      counts['unusable'] += sum(not one.is_usable for one in own)
      texts, kept = self._choose(self._rng(_CHOICE, number, n), prompt, own)
      counts['groups' if kept is not None else 'ties'] += 1
      if kept is not None:
        lines.append(self._describe_choice(prompt, own, texts, kept))
    return lines, counts

  def _describe_choice(self, prompt, replies, texts, kept) -> dict[str, Any]:
    """Returns a line of swipes.jsonl; `value` is the user's rating."""
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
    """Trains the round's model, or resumes."""
    before = self._inputs.experiment
    # Fewer steps where some prompts have no choice, so that each choice is read
    # equally often.
    chosen = counts['groups']
    steps = -(-before.loop.steps * chosen // (chosen + counts['ties']))
    experiment = dataclasses.replace(
      before,
      loop=dataclasses.replace(before.loop, steps=steps),
      begin_with=str(self._initial_weights_path(number)),
      data=dataclasses.replace(
        before.data,
        path=str(folder / 'swipes.jsonl'),
        reference=str(folder / 'reference.npz'),
      ),
    )
    steps = batch_schedule.schedule_of(experiment).steps
    state = train.train(experiment, folder / 'run', programs=self._cache)
    if int(state.step) < steps:
      raise KeyboardInterrupt

  def _evaluate(
    self, number: int, folder: pathlib.Path
  ) -> tuple[guards.Readings, dict[str, Any]]:
    """Returns what the guards read, and further fields of the record."""
    loaded = load.from_workdir(folder / 'run')
    self._sampler.use(loaded)
    watched = self._held_out[: self._inputs.watched]
    replies = self._sampler.sample(
      [
        (one.prompt, self._seed(_ROUND_EVAL, number, n, 0))
        for n, one in enumerate(watched)
      ]
    )
    readings, others = self._evaluator.evaluate(loaded, replies)
    others['model'] = load.digest(loaded)
    others['win'] = None
    if self._user is not None:
      wins = evaluate.count_wins(self._user, watched, replies)
      others['win'] = wins.describe()
    return readings, others

  def _folder(self, number: int) -> pathlib.Path:
    return self.out / 'rounds' / f'{number:02d}'

  def _initial_weights_path(self, number: int) -> str | pathlib.Path:
    """Returns the path of the model with which a round begins."""
    if number == 1:
      return self._settings.model
    return self._folder(number - 1) / 'run'

  def _seed(self, *parts: int) -> int:
    return replies_lib.seed_of(self._settings.seed, *parts)

  def _rng(self, *parts: int) -> np.random.Generator:
    return np.random.default_rng((self._settings.seed, *parts))
