"""Engines: where weights live. The interface is here, free of torch; `milonga.engine.local` is the one for one machine."""

from milonga.engine.base import Completion, Decoding, Engine, History, LearnReport, Ledger, Progress, Request, Usage

__all__ = ["Completion", "Decoding", "Engine", "History", "LearnReport", "Ledger", "Progress", "Request", "Usage"]
