"""The counts of an export in words, and how far places decided what was kept.

Somebody who swipes stops at the first reply that is good enough, so that the
last one drawn is kept most often, whatever it says. A model that learns from
choices learns this, too, unless its rows are weighted or sampled by place; the
table tells how strong it is.
"""

from collections.abc import Mapping

from kaiju_jax.alignment.feedback import export
from kaiju_jax.serving.stores import feedback

_SIGNS = 'rated', 'went_on', 'shown'


def describe(result: export.Export) -> list[str]:
  """Returns the lines that the command prints."""
  count = result.counts.get
  ended = {
    name.removeprefix('ended_'): number
    for name, number in result.counts.items()
    if name.startswith('ended_')
  }
  return [
    f'{count("owners", 0):,} owners who agree, of whom'
    f' {count("owners_held_out", 0):,} are held out;'
    f' {count("sessions", 0):,} sessions.',
    f'{count("lines_train", 0):,} lines to train on,'
    f' {count("lines_held_out", 0):,} held out;'
    f' {count("lines_repeated", 0):,} repeated ones are left out.',
    f'{count("turns", 0):,} turns, {count("regenerations", 0):,} regenerations,'
    f' {count("replies_edited", 0):,} edits of replies.',
    f'{count("choices", 0):,} choices'
    f' ({_list({x: count(f"choices_{x}", 0) for x in _SIGNS})}):'
    f' {count("replies_kept", 0):,} replies kept,'
    f' {count("replies_passed_over", 0):,} passed over.',
    f'Ratings: {_list({x: count(f"rated_{x}", 0) for x in feedback.RATINGS})}.',
    f'Replies ended: {_list(ended) or "none"};'
    f' {count("endings", 0):,} turns end a conversation.',
    f'Left out: {count("replies_filtered", 0):,} replies that safety ended'
    f' ({count("filtered_rated_wrongly_refused", 0):,} rated wrongly refused),'
    f' {count("turns_refused", 0):,} turns for them,'
    f' {count("sessions_of_untold_characters", 0):,} sessions with characters'
    ' whose owners have not agreed,'
    f' {count("lines_too_long", 0):,} branches of very long sessions.',
    *_describe_places(result.places),
    f'{len(result.gone):,} sessions of earlier exports are gone:'
    f' {export.MANIFEST} lists them.',
  ]


def _describe_places(places: Mapping[tuple[int, int], int]) -> list[str]:
  """Returns a line per number of replies, and one about the last place."""
  total = sum(places.values())
  if not total:
    return ['Places: no choice among replies that the model drew.']
  found = []
  for size in sorted({size for size, _ in places}):
    kept = [places.get((size, place), 0) for place in range(size)]
    shares = ', '.join(f'{one / sum(kept):.0%}' for one in kept)
    found.append(
      f'Kept of {size} replies, by place: {shares} ({sum(kept):,} choices;'
      f' {1 / size:.0%} each by chance).'
    )
  last = sum(count for (size, at), count in places.items() if at == size - 1)
  chance = sum(count / size for (size, _), count in places.items())
  found.append(
    f'The last one drawn was kept in {last:,} of {total:,}; by chance in'
    f' {chance:,.1f}.'
  )
  return found


def _list(counts: Mapping[str, int]) -> str:
  return ', '.join(
    f'{number:,} {name.replace("_", " ")}' for name, number in counts.items()
  )
