"""Stage 4 of a request, submit: hands prompts to the engine.

The engine answers with a stream of tokens per choice (`token_stream.py`);
moderation releases their text piece by piece (`reply.py`).
"""

from collections.abc import Sequence
import time

from kaiju_jax.characters.prompts import prompt as prompt_lib
from kaiju_jax.data import begun as begun_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import exchange as exchange_lib
from kaiju_jax.serving.http import metrics as metrics_lib
from kaiju_jax.serving.replies import reasoning
from kaiju_jax.serving.replies import reply as reply_lib
from kaiju_jax.serving.replies import token_stream
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.routes import context as context_lib
from kaiju_jax.serving.safety import moderation


async def replies(
  exchange: exchange_lib.Exchange,
  context: context_lib.Context,
  who: auth.Caller,
  watch: moderation.Watch,
  requests: Sequence[request_lib.Request],
  said: str = '',
  format: prompt_lib.Encoded | None = None,
  begun: begun_lib.Begun | None = None,
  begun_text: str = '',
) -> reply_lib.Choices:
  """Submits requests to the engine, and returns their replies.

  Takes one of the owner's slots for the answer. The exchange frees the slot and
  cancels the sequences when it ends, unless `Choices.close` has done so.

  Args:
    exchange: the HTTP request's account.
    watch: judges the prompts and the replies.
    requests: the engine's requests, one per choice.
    said: the user's text, which is judged with each reply.
    format: the chat format of the prompts; None for plain text.
    begun: the reply's beginning, which the prompts end with; None for none.
  """
  came = time.perf_counter()
  slot = context.limits.stream(who.owner, who.rate)
  exchange.at_end(slot.close)
  streams = await _submit(context, requests)
  for stream in streams:
    exchange.at_end(stream.cancel)
    if watch.mode == 'moderated':
      context.metrics.judged.labels('head', watch.tier).inc()

  def refused(stage: str) -> None:
    context.metrics.refusals.labels(stage, watch.tier).inc()
    exchange.note_end(stage)

  def cut() -> reasoning.Cut | None:
    if format is None or format.thought is None:
      return None
    thought, tokenizer = format.thought, format.tokenizer
    if begun is not None:
      return reasoning.Cut(thought, tokenizer, False, begun.tokens.tolist())
    return reasoning.Cut(thought, tokenizer, format.opens_thought)

  kept = ()
  if begun is not None:
    kept = begun.kept
  elif format is not None and format.opens_thought:
    kept = (format.thought.begin,)
  found = [
    reply_lib.Reply(
      stream,
      watch,
      said,
      _observe_times(context.metrics, came, len(one.tokens)),
      refused,
      cut(),
      begun_text,
      kept,
    )
    for stream, one in zip(streams, requests)
  ]
  exchange.at_end(lambda: _account(exchange, context.metrics, requests, found))
  return reply_lib.Choices(found, slot)


async def _submit(
  context: context_lib.Context, requests: Sequence[request_lib.Request]
) -> Sequence[token_stream.TokenStream]:
  """Returns the engine's streams; raises its refusals as `errors.ApiError`."""
  try:
    return await context.engines.submit(*requests)
  except request_lib.Busy as error:
    context.metrics.rejected.labels('busy').inc()
    if error.seconds is None:
      raise errors.unavailable(str(error)) from error
    raise errors.busy(str(error), error.seconds) from error
  except worker_lib.Stopped as error:
    raise errors.unavailable('the engine has stopped.') from error
  except (TypeError, ValueError) as error:
    raise errors.invalid(str(error)) from error


def _account(
  exchange: exchange_lib.Exchange,
  metrics: metrics_lib.Metrics,
  requests: Sequence[request_lib.Request],
  found: Sequence[reply_lib.Reply],
) -> None:
  """Notes the replies' tokens and rates; counts a shared prompt once."""
  firsts = {id(one.tokens): n for n, one in reversed([*enumerate(requests)])}
  exchange.prompt = sum(len(requests[n].tokens) for n in firsts.values())
  exchange.cached = sum(found[n].reused for n in firsts.values())
  exchange.completion = sum(len(reply.tokens) for reply in found)
  for reply in found:
    if reply.rate is not None:
      metrics.rate.observe(reply.rate)
    if reply.reason is not None:
      exchange.note_end(reply.reason)


def _observe_times(metrics: metrics_lib.Metrics, came: float, prompt: int):
  """Returns a function that a reply calls with each group of new tokens."""
  last = None

  def note(stream: token_stream.TokenStream, count: int) -> None:
    nonlocal last
    now = time.perf_counter()
    if last is None:
      metrics.ttft.observe(now - came)
      metrics.queue.observe(stream.waited)
      metrics.prompt_tokens.inc(prompt)
      metrics.cached_tokens.inc(stream.reused)
    else:
      for _ in range(count):
        metrics.itl.observe((now - last) / count)
    last = now

  return note
