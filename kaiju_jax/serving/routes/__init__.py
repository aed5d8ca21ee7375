"""The addresses: completions, chats, characters, sessions, and operators.

What a handler refuses it raises as `errors.ApiError`, which becomes the answer:
400 for a field, which it names; 401, 403 and 404 for access; 409 for a lost
race; 413 and 415 for bodies; 429 for limits; 503 where a part is away.
"""
