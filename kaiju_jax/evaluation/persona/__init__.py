"""Persona consistency: does a model stay the character that it plays?

    golden       golden conversations: characters, messages, probes, references
    responders   what answers: a model here, an endpoint, or the references
    dialogue     plays conversations, turn by turn
    rules        scores replies by phrases that they must or must not contain
    judges       language models that score replies; `chat_completions` asks one
    labels       people's scores; `calibration` compares a judge with them
    scores       bounds of medians and drops, and means corrected by labels

Source 003 makes this its first quality measure: conversations of eight turns
with characters of three tiers, scored from 1 to 5 for three properties.
"""
