"""What a sandbox may reach: rules as they are written, what is in force, and why a destination is open or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from . import codec
from .codec import Json
from .errors import InvalidArgument

NetworkRules: TypeAlias = Mapping[str, bool] | Sequence[str]
"""Targets to allow or deny, as a mapping (``{"npm": False, "pypi": True}``) or as texts, of which ``!`` denies
(``["!npm", "pypi"]``); one text alone stands for a list of it.

A target is a service (``pypi``; ``dsec net services`` lists them), a name (``example.org``: TCP 80 and 443;
``*.example.org``: every name below it), addresses (``203.0.113.0/24``), each with ports and protocol where wanted
(``example.org:22``, ``10.1.0.0/16:5432/tcp``, ``[2001:db8::1]:53/udp``); ``open``, the public internet; or
``none``. What no rule allows is denied, and a rule that denies beats those that allow. The node, other sandboxes and
metadata services stay closed whatever rules say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The rules that a sandbox is under."""

    rules: dict[str, bool]
    """Targets in the order they were given: allowed or denied."""
    generation_asked: int
    """Counts changes, from 1."""
    generation_applied: int
    """Behind ``generation_asked`` while a change is under way, or could not be applied."""
    warnings: tuple[str, ...] = ()
    """What the allowed services can leak, each as "SERVICE: what". Filled in by set_network."""

    @classmethod
    def from_json(cls, o: Json, warnings: tuple[str, ...] = ()) -> Self:
        return cls(
            rules={codec.text(r, "target"): codec.boolean(r, "allow") for r in codec.messages(o, "rules")},
            generation_asked=codec.integer(o, "generationAsked"),
            generation_applied=codec.integer(o, "generationApplied"),
            warnings=warnings,
        )

    @classmethod
    def optional(cls, o: Json, key: str) -> Self | None:
        return cls.from_json(codec.message(o, key)) if o.get(key) is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkDecision:
    """Whether a sandbox may reach a destination. True where it may."""

    allowed: bool
    rule: str
    """The rule that decides, "!" before one that denies; empty where none does."""
    source: str
    """Whose rule it is: spec, environment, project, or always."""
    why: str
    """For people."""

    def __bool__(self) -> bool:
        return self.allowed

    @classmethod
    def from_json(cls, o: Json) -> Self:
        return cls(
            allowed=codec.boolean(o, "allowed"),
            rule=codec.text(o, "rule"),
            source=codec.text(o, "source"),
            why=codec.text(o, "why"),
        )


def rules_to_json(rules: NetworkRules) -> list[dict[str, Any]]:
    """The rules of the wire contract. What a target means is the service's to judge."""
    if isinstance(rules, str):
        rules = [rules]
    if isinstance(rules, Mapping):
        pairs = list(rules.items())
    else:
        pairs = [(t.removeprefix("!"), not t.startswith("!")) if isinstance(t, str) else (t, True) for t in rules]
    for target, allow in pairs:
        if not isinstance(target, str) or not isinstance(allow, bool):
            raise InvalidArgument(
                f'network rule {target!r}: {allow!r}: want a text, and True or False: {{"pypi": True}}'
            )
    return [{"target": target, "allow": allow} for target, allow in pairs]
