"""A search of beams that runs each path from its first token each time."""


def search(last, settings, stops, judge=None):
  """Returns [(tokens, score)] of a `beam.Search`'s settings, the best first.

  `last` takes paths, and returns of each what its last token is judged by and
  the log-probabilities [V] behind it. `judge` says what a path is worth, of the
  sum of its log-probabilities and of what its last token is judged by.
  """
  live, ended = {(): (0.0, 0.0, last([()])[0][1])}, {}
  for _ in range(settings.depth):
    totals = {
      (*tokens, token): (total + log_V[token], score + log_V[token])
      for tokens, (total, score, log_V) in live.items()
      for token in range(len(log_V))
    }
    by_score = sorted(totals, key=lambda x: -totals[x][1])
    candidates = by_score[: settings.queries]
    read = dict(zip(candidates, last(candidates)))
    judged = {x: totals[x][1] for x in candidates}
    if judge is not None:
      judged = {x: judge(totals[x][0], read[x][0]) for x in candidates}
    best = sorted(judged, key=lambda x: -judged[x])[: settings.width]
    live = {
      x: (totals[x][0], judged[x], read[x][1])
      for x in best
      if x[-1] not in stops
    }
    ended |= {x: judged[x] for x in best if x[-1] in stops}
    if not live:
      break
  final = ended | {tokens: score for tokens, (_, score, _) in live.items()}
  final = {
    tokens: score / ((5 + len(tokens)) / 6) ** settings.length_penalty
    for tokens, score in final.items()
  }
  return sorted(final.items(), key=lambda x: -x[1])[: settings.results]
