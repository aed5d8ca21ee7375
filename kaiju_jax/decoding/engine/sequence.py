"""A sequence: one request on its way to its result.

With a token-level head, the engine gives out no token before the head has
judged it. The call that appends a token to the cache judges it, one call after
the token was drawn. Until then the token is `unjudged`, and a sequence's last
token takes a call of its own. A token that is unjudged when the sequence ends
or is parked does not count: a parked sequence draws it again. A stop token
shows no text, so it ends the sequence at once, unjudged.
"""

import collections
from collections.abc import Hashable
from collections.abc import Sequence as Several
from typing import NamedTuple

import numpy as np

from kaiju_jax.decoding.beam import paths as beam_paths
from kaiju_jax.decoding.beam import search as beam
from kaiju_jax.decoding.device import judge as judge_lib
from kaiju_jax.decoding.engine import phases
from kaiju_jax.decoding.engine import rounds
from kaiju_jax.decoding.pages import nodes
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.decoding.pages import recording
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import stop


class Drawn(NamedTuple):
  """A token that a call drew; −1 where the logits were not finite."""

  token: int
  log_probability: float
  # The head's of the token before it; None without one, and behind a prompt.
  score_C: np.ndarray | None = None
  alternatives: request_lib.Alternatives = ()


class Judged(NamedTuple):
  """The head's float32 probabilities of tokens from position `begin` on."""

  begin: int
  score_LC: np.ndarray


class Scored(NamedTuple):
  """Log-probabilities of the successors of `count` tokens from `begin` on."""

  begin: int
  count: int
  scores: rounds.Scores


Output = Drawn | Judged | Scored | beam_paths.Beam


class Sequence:
  """One request: its phase, its tokens so far, and its place in the queue.

  `update` applies what a call gave it; all else that changes is set by the
  engine, and described beside it.
  """

  def __init__(
    self,
    number: int,
    request: request_lib.Request,
    tokens_L: np.ndarray,
    text: stop.Text,
    prior_tokens: int = 0,
    judge: judge_lib.Judge | None = None,
  ):
    # Names the sequence in messages.
    self.number = number
    self.request = request
    # The request's owner, as the prefix tree's bytes.
    self.owner: bytes = request.owner.encode()
    self.phase = phases.Phase.WAITING
    # Tokens of the prompt; with `Request.drawn`; of earlier turns, not scored.
    self.prompt: int = len(tokens_L)
    self.given: int = self.prompt + len(request.drawn)
    self.prior_tokens = prior_tokens

    # When it was submitted, in seconds of the engine's clock, plus the seconds
    # for which it has had a row since; when it got its latest row; when its
    # caller last read its events.
    self.came: float = 0.0
    self.joined_at: float | None = None
    self.read_at: float = 0.0
    # Its place in its owner's share (`schedule.Shares`); how many later ones
    # joined while it waited; rounds since its prompt or search last ran.
    self.tag: float = 0.0
    self.overtaken = 0
    self.passed = 0

    # The cache row's index; None while it has none.
    self.row: int | None = None
    # Records its text; None before its first row, and in an engine that records
    # nothing.
    self.recorder: recording.RequestRecorder | None = None
    # Tokens that were in the cache when it came; those of the prompt that did
    # not run.
    self.reusable = 0
    self.reused = 0
    # Finds its continuation, until its row is text again; None if it draws.
    self.search: beam.BeamSearch | None = None
    # Calls in flight that draw for it.
    self.flying: int = 0
    # Drawn, and not judged yet.
    self.unjudged: Drawn | None = None

    # See `request.Result`; `reason` is None before the end.
    self.reason: str | None = None
    self.error: Exception | None = None
    self.prompt_scores: tuple[float, ...] | None = None
    # Tokens that its caller has not read yet.
    self.events: collections.deque[request_lib.Event] = collections.deque()

    # All tokens, of the prompt and drawn.
    self._tokens = np.empty(self.prompt + request.max_tokens, np.int32)
    self._tokens[: self.prompt] = tokens_L
    self._tokens[self.prompt : self.given] = request.drawn
    self._draw = len(request.drawn)
    # The head's probabilities of each of them; NaN where not known.
    self._judged: nodes.Scores | None = None
    if judge is not None:
      shape = self.room, len(judge.names)
      score_LC = np.full(shape, np.nan, np.float32)
      self._judged = nodes.Scores(judge.version, score_LC)
    self._memo = nodes.Memo()
    self._text = text
    self._stops = frozenset(request.stop_tokens)
    # The head's of the last token that it judged, for events.
    self._scores: tuple[float, ...] | None = None
    self._pieces: list[str] = []
    self._log_probabilities: list[float] = []
    # Scores of chunks, which entries of each count, and where they end.
    self._scored: list[tuple[rounds.Scores, slice]] = []
    self._scored_to = prior_tokens

  @property
  def is_begun(self) -> bool:
    """Whether it ever had a row."""
    return self.joined_at is not None

  @property
  def is_drawing(self) -> bool:
    """Whether its row holds the whole prompt, so that tokens follow."""
    return self.phase in (phases.Phase.DRAWING, phases.Phase.SEARCHING)

  @property
  def draws(self) -> bool:
    """Whether its tokens are drawn; otherwise a search finds them."""
    return self.request.guided is None

  @property
  def waited(self) -> float:
    """For how many seconds it has waited for rows, once it had one."""
    return max(self.joined_at - self.came, 0.0) if self.is_begun else 0.0

  @property
  def conversation(self) -> Hashable | None:
    """The conversation that its points belong to, one per owner and name."""
    if self.request.conversation is None:
      return None
    return self.owner, self.request.conversation

  @property
  def room(self) -> int:
    """Tokens that its row must have room for."""
    return len(self._tokens)

  @property
  def extra(self) -> int:
    """Slots that its search needs beyond its text."""
    guide = self.request.guided
    return 0 if guide is None else guide.extra(self.request.max_tokens)

  @property
  def length(self) -> int:
    """Tokens of the text so far, prompt and drawn."""
    return self.prompt + self._draw

  @property
  def tokens_L(self) -> np.ndarray:
    """The text so far, int32."""
    return self._tokens[: self.length]

  @property
  def is_whole(self) -> bool:
    """Whether it needs no further call, once the device has run its last."""
    drawn = self._draw + (self.unjudged is not None)
    # The last token is judged by the call that would draw one more.
    is_judged = self._judged is not None
    return self.request.max_tokens + is_judged - drawn <= self.flying

  @property
  def tokens_left(self) -> int:
    """How many more tokens it may draw."""
    steps = 0 if self.search is None else self.search.step
    return self.request.max_tokens - self._draw - steps

  @property
  def record_lengths(self) -> Several[int]:
    """The lengths at which its prompt is recorded, ascending."""
    return () if self.recorder is None else self.recorder.lengths

  @property
  def resumable(self) -> prefix_tree.Text:
    """The text whose beginning it may resume, its last token excluded.

    A token whose successor is to be scored must run, so it is not resumed.
    """
    if self.is_begun or not self.request.scores_prompt:
      return self.text()
    return self.text(self.prior_tokens + 1)

  def text(self, length: int | None = None) -> prefix_tree.Text:
    """Returns the beginning of the text, all of it by default."""
    length = self.length if length is None else min(length, self.length)
    return prefix_tree.Text(
      self._tokens[:length],
      self.request.shared,
      self.owner,
      self.request.cache_salt.encode(),
      self._judged,
      self._memo,
    )

  def enter(self, phase: phases.Phase) -> None:
    """Changes the phase; ValueError if it cannot follow."""
    phases.check(self.number, self.phase, phase)
    self.phase: phases.Phase = phase

  def update(self, output: Output) -> str | None:
    """Applies what a call or a search gave the sequence.

    Returns why the sequence ends with it, None where it goes on or has ended
    before.
    """
    match output:
      case Scored():
        self._note_scored(*output)
        return None
      case Drawn():
        self.flying -= 1
        return self._take(output)
      case Judged():
        return self._judge(*output)
      case _:
        return self._find(output)

  def result(self) -> request_lib.Result:
    """Returns the result so far."""
    scores = likeliest = None
    if self.request.scores_prompt:
      scores, _, likeliest = rounds.concatenate(self._scored)
    return request_lib.Result(
      tokens=self._tokens[self.given : self.length].copy(),
      text=''.join(self._pieces),
      log_probabilities=np.array(self._log_probabilities, np.float32),
      prompt_log_probabilities=scores,
      reason=self.reason,
      error=self.error,
      reused=self.reused,
      prompt_scores=self.prompt_scores,
      prompt_alternatives=likeliest if self.request.alternatives else None,
    )

  def _judge(self, begin: int, score_LC: np.ndarray) -> str | None:
    """Notes the head's scores of prefilled or resumed tokens."""
    if self.reason is not None:
      return None
    self._judged.score_LC[begin : begin + len(score_LC)] = score_LC
    self._record_scores()
    if not np.isfinite(score_LC).all():
      return self._fail(_BAD_SCORES)
    prompt_LC = score_LC[: max(self.prompt - begin, 0)]
    if len(prompt_LC):
      if self.prompt_scores is not None:
        prompt_LC = [*prompt_LC, self.prompt_scores]
      self.prompt_scores = tuple(np.max(prompt_LC, axis=0).tolist())
    if begin + len(score_LC) > self.prompt:
      self._scores = tuple(score_LC[-1].tolist())
    return None

  def _take(self, drawn: Drawn) -> str | None:
    """Takes a drawn token, and gives out the one that it judges."""
    if self.reason is not None:
      # A stop token was appended before the host had read it.
      if self.reason == 'stop_token' and drawn.score_C is not None:
        self._judged.score_LC[self.length - 1] = drawn.score_C
        self._record_scores()
      return None
    if self.unjudged is not None:
      if not np.isfinite(drawn.score_C).all():
        return self._fail(_BAD_SCORES)
      judged, self.unjudged = self.unjudged, None
      self._note_scores(drawn.score_C)
      reason = self._give(judged)
      if reason is not None:
        return reason
    if drawn.token < 0:
      return self._fail(_BAD_LOGITS)
    if self._judged is not None and drawn.token not in self._stops:
      self.unjudged = drawn
      return None
    return self._give(drawn)

  def _find(self, best: beam_paths.Beam) -> str | None:
    """Gives out the tokens that a search found."""
    if not np.isfinite(best.probabilities).all():
      return self._fail(_BAD_SCORES)
    reason = None
    for number, token in enumerate(best.tokens):
      if best.probabilities:
        is_shown = token not in self._stops
        self._note_scores(best.probabilities[number], is_shown)
      reason = self._give(Drawn(token, best.log_probabilities[number]))
      if reason is not None:
        break
    return reason

  def _give(self, drawn: Drawn) -> str | None:
    """Gives out a token; returns why the sequence ends with it, or None."""
    token, log_probability, _, alternatives = drawn
    piece = self._text.push(token)
    reason = self._text.reason
    self._tokens[self.length] = token
    self._draw += 1
    if reason is None and self._draw == self.request.max_tokens:
      piece += self._text.finish()
      reason = self._text.reason or 'length'
    self._pieces.append(piece)
    self._log_probabilities.append(log_probability)
    self.events.append(
      request_lib.Event(
        token,
        piece,
        log_probability,
        reason,
        self._scores,
        self._text.held,
        alternatives,
      )
    )
    return reason

  def _note_scores(self, score_C: np.ndarray, is_shown: bool = True) -> None:
    """Notes the head's scores of the token that is given out next."""
    self._judged.score_LC[self.length] = score_C
    if is_shown:
      self._scores = tuple(score_C.tolist())

  def _record_scores(self) -> None:
    """Adds scores that were not known before to the sequence's points."""
    if self.recorder is not None:
      self.recorder.add_scores(self.text())

  def _note_scored(self, begin: int, count: int, scores: rounds.Scores) -> None:
    """Notes scores of the prompt's tokens, each once."""
    end = min(begin + count, self.prompt - 1)
    if end > self._scored_to:
      kept = slice(max(self._scored_to - begin, 0), end - begin)
      self._scored.append((scores, kept))
      self._scored_to = end

  def _fail(self, why: str) -> str:
    """Notes an error of the model; returns the reason 'error'."""
    self.error = request_lib.BadLogits(
      f'sequence {self.number}, in row {self.row}, step {self._draw}: {why} It'
      f' ends here, {self._draw} tokens after its prompt of {self.prompt}.'
    )
    return 'error'


_BAD_SCORES = (
  'what the token-level head gives a token is no number, so that nothing may be'
  ' shown.'
)
_BAD_LOGITS = (
  'its logits hold NaN or +inf, or nothing but -inf, so that no token can be'
  ' drawn.'
)
