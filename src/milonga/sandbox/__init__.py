"""Running what a model wrote: programs as data, in processes that hold nothing, are limited, and leave nothing behind."""

from milonga.sandbox.values import Canonical, InvalidValue, Value, canonical, decode, read_literal, same

__all__ = ["Canonical", "InvalidValue", "Value", "canonical", "decode", "read_literal", "same"]
