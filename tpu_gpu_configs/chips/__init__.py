"""Holds each chip's figures: the maker's, those of others, and our guesses."""
