"""Refusals of the live protocols: one category of docs/protocol/handoff.md section 2 and its exact text.

Categories: canonical, cancelled, deadline_exceeded, io, validation, invalid, json, config, replay, zero_generation,
missing_begin, producer_abort. The message leaves out the words that name the category and is empty where the category
says everything.
"""
from ..errors import Reject as Refusal

__all__ = ["Refusal", "bare", "invalid", "validation"]


def validation(message):
    return Refusal("validation", message)


def invalid(message):
    return Refusal("invalid", message)


def bare(category):
    return Refusal(category, "")
