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
class NetworkLimits:
    """Bounds of what a sandbox uses of the network. 0 is no limit of its own."""

    bandwidth_bps: int = 0
    """Bytes per second, in each direction; what is over it is dropped. At least 1024."""
    connections: int = 0
    """Connections, and exchanges of datagrams, that are open at once; more are refused."""

    def to_json(self) -> dict[str, Any]:
        for name, value in (("bandwidth_bps", self.bandwidth_bps), ("connections", self.connections)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InvalidArgument(f"{name} {value!r}: want a whole number, or 0 for no limit")
        return {"bandwidthBps": str(self.bandwidth_bps), "connections": str(self.connections)}

    @classmethod
    def from_json(cls, o: Json) -> Self:
        return cls(bandwidth_bps=codec.integer(o, "bandwidthBps"), connections=codec.integer(o, "connections"))


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLayer:
    """A policy that a sandbox is under beside its own rules: a destination must be allowed by it too."""

    source: str
    """Whose it is: "environment base/python:3.12", "project research"."""
    rules: dict[str, bool]
    """Empty where it bounds by its limits alone."""
    limits: NetworkLimits

    @classmethod
    def from_json(cls, o: Json) -> Self:
        policy = codec.message(o, "policy")
        return cls(
            source=codec.text(o, "source"),
            rules=rules_from_json(policy),
            limits=NetworkLimits.from_json(codec.message(policy, "limits")),
        )


def rules_from_json(o: Json) -> dict[str, bool]:
    """The targets of a message that has rules."""
    return {codec.text(r, "target"): codec.boolean(r, "allow") for r in codec.messages(o, "rules")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The rules that a sandbox is under."""

    rules: dict[str, bool]
    """Targets in the order they were given: allowed or denied."""
    generation_asked: int
    """Counts changes, from 1."""
    generation_applied: int
    """Behind ``generation_asked`` while a change is under way, or could not be applied."""
    limits: NetworkLimits = NetworkLimits()
    """Its own; those in ``above`` bound it too."""
    above: tuple[NetworkLayer, ...] = ()
    """Policies of its environment and project."""
    private_network: str = ""
    """The private network that it is a member of."""
    network_name: str = ""
    """What the other members call it; empty: its id."""
    warnings: tuple[str, ...] = ()
    """What the allowed services can leak, each as "SERVICE: what". Filled in by set_network."""

    @classmethod
    def from_json(cls, o: Json, warnings: tuple[str, ...] = ()) -> Self:
        return cls(
            rules=rules_from_json(o),
            generation_asked=codec.integer(o, "generationAsked"),
            generation_applied=codec.integer(o, "generationApplied"),
            limits=NetworkLimits.from_json(codec.message(o, "limits")),
            above=tuple(NetworkLayer.from_json(x) for x in codec.messages(o, "above")),
            private_network=codec.text(o, "privateNetwork"),
            network_name=codec.text(o, "networkName"),
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
    """Whose rule it is: "spec", "environment KIND/NAME", "project NAME", or "always"."""
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
