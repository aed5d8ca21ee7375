"""Opens judges of personas, calibrates them, and reads their calibrations."""

from collections.abc import Iterator
from collections.abc import Sequence
import datetime
import pathlib
import statistics
from typing import Any
from typing import NamedTuple

from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.evaluation.persona import calibration
from kaiju_jax.evaluation.persona import chat_completions
from kaiju_jax.evaluation.persona import dialogue
from kaiju_jax.evaluation.persona import judges
from kaiju_jax.evaluation.persona import labels as labels_lib
from kaiju_jax.evaluation.persona import responders
from kaiju_jax.evaluation.persona import scores
from kaiju_jax.reporting import decision as decision_lib
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics as statistics_lib
from kaiju_jax.runs import defaults
from kaiju_jax.runs import load
from kaiju_jax.runs import play

NAME = 'judge'


class Opened(NamedTuple):
  """A model that answers or judges.

  Attributes:
    generator: the model, as a server draws from it.
    decoder: the generator's decoder.
    format: its chat format; None if it only continues text.
    digest: hash of its parameters.
    origin: a description of its source.
    tokenizer: its tokenizer.
  """

  generator: generator_lib.Generator
  decoder: Any
  format: chat.Format | None
  digest: str
  origin: str
  tokenizer: Any = None


def open_model(
  path: str,
  rows: int,
  played: play.Player = play.SERVED,
  chats: bool = True,
) -> Opened:
  """Opens a workdir, an export or a Hugging Face folder.

  Args:
    path: the model.
    rows: texts that it answers at a time.
    played: how.
    chats: whether to refuse a model that only continues text.

  Raises:
    OSError, RuntimeError, ValueError: as `load.from_anywhere`; also a
      ValueError for a model that is refused.
  """
  loaded = played.load(path)
  tokenizer = tokenizer_lib.load(loaded.tokenizer, loaded.config.vocab_size)
  format = defaults.read(loaded, tokenizer).format
  if format is None and chats:
    raise ValueError(
      f'{path}: has no chat template: it only continues text, and answers'
      ' nobody.'
    )
  digest = load.digest(loaded)
  decoder = play.decoder(
    loaded, tokenizer, rows=rows, length=played.length, cache=played.cache
  )
  generator = generator_lib.Generator(decoder, tokenizer)
  return Opened(generator, decoder, format, digest, loaded.origin, tokenizer)


class Answering(NamedTuple):
  """Somebody who answers.

  Attributes:
    responder: what gives the answers.
    name: its name in reports.
    identity: who it is among judges.
  """

  responder: dialogue.Responder
  name: str
  identity: str


def open_endpoint(
  address: str, model: str | None, temperature: float = 0.0
) -> Answering:
  """Opens a server as somebody who answers.

  Args:
    address: the server's.
    model: its name of its model; None for the only one that it lists.
    temperature: of the sampling.

  Raises:
    ImportError, ValueError: see `client`.
    chat_completions.Refused: it does not list one model.
  """
  server = client(address)
  model = model or chat_completions.served_model(server)
  responder = responders.Endpoint(server, model, temperature)
  return Answering(responder, model, f'{server.base_url} {model}')


def open_responder(
  path: str,
  rows: int,
  temperature: float = 0.0,
  seed: int = 0,
  chats: bool = True,
  played: play.Player = play.SERVED,
) -> Answering:
  """Opens a model as somebody who answers.

  Args:
    path: the model.
    rows: texts that it answers at a time.
    temperature, seed: of the sampling, if it chats.
    chats: whether to refuse a model that only continues text; otherwise it
      continues, greedily.
    played: how the model is played.

  Raises:
    OSError, RuntimeError, ValueError: as `open_model`.
  """
  opened = open_model(path, rows, played, chats)
  if opened.format is None:
    responder = responders.Continuation(opened.generator, opened.tokenizer)
  else:
    responder = responders.Model(
      opened.generator, opened.format, temperature, seed
    )
  return Answering(responder, opened.origin, f'checkpoint {opened.digest}')


def client(address: str) -> Any:
  """Returns an `openai.OpenAI` for a server; its key is in OPENAI_API_KEY.

  Raises:
    ImportError: openai is not installed.
    ValueError: there is no key.
  """
  try:
    import openai
  except ImportError as error:
    raise ImportError(
      f"{address} needs openai: pip install 'kaiju_jax[client]'."
    ) from error
  try:
    return openai.OpenAI(base_url=address)
  except openai.OpenAIError as error:
    raise ValueError(
      f'{address}: its key must be in the environment as OPENAI_API_KEY; any'
      ' word for a server that asks for none.'
    ) from error


def read(
  name: str,
  model: str = '',
  samples: int = 1,
  answers: str | None = None,
  played: play.Player = play.SERVED,
) -> judges.Judge:
  """Returns a judge by its name.

  Args:
    name: 'rules', the address of a server, or the path of a model.
    model: the server's name of its model; '' without a server.
    samples: answers of a server per conversation.
    answers: a folder for a server's answers; None keeps none.
    played: how a model is played.

  Raises:
    ImportError, OSError, RuntimeError, ValueError: see `client` and
      `open_model`; also a ValueError for a server without a model.
  """
  is_server = name.startswith(('http://', 'https://'))
  if is_server != bool(model):
    raise ValueError(
      f'judge_model={model!r}: must name the model of a server, and judge'
      f'={name!r} is {"one" if is_server else "none"}.'
    )
  if name == judges.Rules.identity:
    return judges.Rules()
  if is_server:
    path = pathlib.Path(answers) if answers else None
    return judges.Endpoint(client(name), model, samples, path)
  opened = open_model(name, 1, played)
  return judges.Checkpoint(opened.generator, opened.format, opened.digest)


def refuse_own(judge: str, candidate: str) -> None:
  """Refuses a judge that is the model it judges.

  Args:
    judge: the judge's identity.
    candidate: the responder's; '' for none.

  Raises:
    ValueError: they are the same model.
  """
  if candidate and judge.split(',')[0] == candidate:
    raise ValueError(
      f'judge={judge}: is the model that is judged. Take another one.'
    )


def refuse_other(judge: str, before: decision_lib.Decision) -> None:
  """Refuses a decision that another judge made.

  Raises:
    ValueError: names both judges.
  """
  other = before.inputs.get('judge', judges.Rules.identity)
  if other != judge:
    raise ValueError(
      f'judge={judge}: the decision before was made by {other}: their scores'
      ' cannot be compared.'
    )


def calibrate(
  judge: judges.Judge,
  labels: Sequence[labels_lib.Label],
  today: datetime.date,
  inputs: dict[str, str],
  before: decision_lib.Decision | None = None,
) -> decision_lib.Decision:
  """Returns the decision on a judge.

  Args:
    judge: the judge.
    labels: scores that people gave; those older than a month do not count.
    today: the day.
    inputs: SHA-256 by the name of what was read.
    before: an earlier decision on the same judge; None without one.

  Raises:
    ValueError: a label of the future, or `before` is about another judge.
  """
  if before is not None:
    if before.name != NAME:
      raise ValueError(f'{before.name}: must be a decision on a judge.')
    refuse_other(judge.identity, before)
  recent = calibration.fresh(labels, today)
  figures = {
    'labels': len(recent),
    'older': len(labels) - len(recent),
    'date': min((one.date for one in recent), default=today).isoformat(),
  }
  agreement, flips, biases = {}, calibration.Flips(0, 0), None
  if len(recent) >= 2:
    judged = [judge.score(one.conversation, one.replies) for one in recent]
    agreement = calibration.compare(recent, judged)
    flips = calibration.count_flips(judge, recent)
    figures['pairs'] = [
      [statistics.fmean(x.scores.values()), statistics.fmean(y.values())]
      for x, y in zip(recent, judged)
    ]
  if before is not None and before.figures.get('agreement'):
    biases = {
      name: statistics_lib.Estimate(**one['bias'])
      for name, one in before.figures['agreement'].items()
    }
  checks = calibration.checks(len(recent), agreement, flips, biases)
  figures |= {'agreement': agreement, 'flips': flips}
  return decision_lib.decide(
    NAME,
    list(checks),
    report.plain(figures),
    {**inputs, 'judge': judge.identity},
  )


def calibration_checks(
  judge: str, found: decision_lib.Decision | None, today: datetime.date
) -> Iterator[decision_lib.Check]:
  """Yields the check that a judge which reads is calibrated.

  Rules need no calibration: whoever names them accepts what they are.

  Args:
    judge: the judge's identity.
    found: the decision of `calibrate`; None without one.
    today: the day.

  Raises:
    ValueError: the decision is about another judge, or about something else.
  """
  if judge == judges.Rules.identity:
    return
  if found is None:
    yield decision_lib.abstain(
      'The judge is not calibrated: experiments.judge holds it against'
      " people's scores."
    )
    return
  if found.name != NAME:
    raise ValueError(f'{found.name}: must be a decision on a judge.')
  refuse_other(judge, found)
  if found.status != decision_lib.PASSED:
    yield decision_lib.Check(
      found.status, f'The judge was not accepted: {" ".join(found.reasons)}'
    )
    return
  date = datetime.date.fromisoformat(found.figures['date'])
  if 0 <= (today - date).days <= calibration.DAYS:
    yield decision_lib.Check(decision_lib.PASSED)
    return
  yield decision_lib.abstain(
    f"The judge's labels are of {date}: at most {calibration.DAYS} days may"
    ' lie between.'
  )


def page(found: decision_lib.Decision) -> report.Report:
  """Returns the page of a calibration."""
  figures, read = found.figures, statistics_lib.Estimate.read
  title = f'{found.inputs["judge"]} against {figures["labels"]} labels'
  return (
    report.Report(title)
    .table(
      [
        (
          name,
          read(one['kappa']),
          f'{one["within_one"]:.0%}',
          read(one['bias']),
          read(one['slope']),
        )
        for name, one in figures['agreement'].items()
      ],
      ('property', 'κ', 'within 1', 'judge − human', 'per doubled words'),
    )
    .say(
      '95 % intervals over conversations. Preferences that change with the'
      f' order: {figures["flips"]["count"]} of {figures["flips"]["pairs"]}.'
      f' {figures["older"]} older labels were left out.'
    )
    .decide(found)
  )


def rectify(
  judged: Sequence[float], found: decision_lib.Decision | None
) -> statistics_lib.Estimate | None:
  """Returns the mean that people would give; None without enough labels.

  Args:
    judged: the judge's scores of conversations.
    found: the calibration of the same judge.
  """
  pairs = found.figures.get('pairs', []) if found else []
  if len(pairs) < calibration.NEEDED or len(judged) < 2:
    return None
  return scores.rectified_mean(judged, pairs)
