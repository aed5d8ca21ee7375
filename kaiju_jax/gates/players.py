"""Opens models and servers that answer or judge."""

import pathlib
from typing import Any
from typing import NamedTuple

from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.evaluation.persona import chat_completions
from kaiju_jax.evaluation.persona import dialogue
from kaiju_jax.evaluation.persona import judges
from kaiju_jax.evaluation.persona import responders
from kaiju_jax.runs import defaults
from kaiju_jax.runs import load
from kaiju_jax.runs import play


class Opened(NamedTuple):
  """A model that answers or judges."""

  generator: generator_lib.Generator
  decoder: Any  # The generator's.
  format: chat.Format | None  # None if the model only continues text.
  digest: str  # Hash of the parameters.
  origin: str  # A description of the model's source.
  tokenizer: Any = None


def open_model(
  path: str,
  rows: int,
  played: play.Player = play.SERVED,
  chats: bool = True,
) -> Opened:
  """Opens a model.

  Args:
    path: a workdir, an export or a Hugging Face folder.
    rows: texts that it answers at a time.
    played: how the model is played.
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
  decoder = played.decoder(loaded, tokenizer, rows)
  generator = generator_lib.Generator(decoder, tokenizer)
  return Opened(generator, decoder, format, digest, loaded.origin, tokenizer)


class Answering(NamedTuple):
  """A responder."""

  responder: dialogue.Responder
  name: str  # In reports.
  identity: str  # As in `judges.Judge`.


def open_responder(
  wanted: Any, rows: int, temperature: float, seed: int, chats: bool
) -> Answering:
  """Opens the server or model of a `settings.Responder`.

  Args:
    wanted: the `settings.Responder`.
    rows: texts that a model answers at a time.
    temperature, seed: of the sampling, if it chats.
    chats: as in `open_model`; a model that only continues text does so
      greedily.

  Raises:
    ImportError, OSError, RuntimeError, ValueError: as `client` and
      `open_model`.
    chat_completions.Refused: the server does not list one model.
  """
  if wanted.endpoint:
    server = client(wanted.endpoint)
    model = wanted.endpoint_model or chat_completions.served_model(server)
    responder = responders.Endpoint(server, model, temperature)
    return Answering(responder, model, f'{server.base_url} {model}')
  opened = open_model(wanted.model, rows, wanted.player, chats)
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


def open_judge(
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
    return judges.JudgeEndpoint(client(name), model, samples, path)
  opened = open_model(name, 1, played)
  return judges.Checkpoint(opened.generator, opened.format, opened.digest)


def check_same_tokens(baseline: Opened, candidate: Opened) -> None:
  """Refuses models that do not read the same tokens.

  Raises:
    ValueError: their tokenizers or chat formats differ.
  """
  ours, theirs = (
    tokenizer_lib.hash_use(one.format.tokenizer) + one.format.digest
    for one in (baseline, candidate)
  )
  if ours != theirs:
    raise ValueError(
      f'candidate={candidate.origin}: must have the tokenizer and chat'
      f' template of the baseline, {baseline.origin}: tokens are compared.'
    )
