"""Trains models on choices: online rounds, exported feedback, exposure."""
