"""Network policies beside names of the catalogue, which sandboxes made of them are under."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from . import codec
from .codec import Json, without_defaults
from .errors import InvalidArgument
from .network import NetworkLimits, NetworkRules, rules_from_json, rules_to_json
from .transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkDefault:
    """What sandboxes made of a layer, or of a named environment, may reach."""

    target: str
    """Whose it is: ``base/NAME``, ``workspace/NAME``, ``toolkit/NAME``, ``environment/NAME``; the first three with
    ``@VERSION`` where only one is meant."""
    rules: dict[str, bool]
    limits: NetworkLimits

    @classmethod
    def from_json(cls, o: Json) -> Self:
        policy = codec.message(o, "policy")
        return cls(
            target=codec.text(o, "target"),
            rules=rules_from_json(policy),
            limits=NetworkLimits.from_json(codec.message(policy, "limits")),
        )


_Defaults = list[NetworkDefault]  # inside the class, "list" is a method


class NetworkDefaults:
    """Sets and lists defaults.

    A sandbox that is given no rules has those of what it is made of; one that is given some may reach what both allow.
    Those that run keep what they have. A default goes with the name that it is of.
    """

    def __init__(self, transport: Transport) -> None:
        self._t = transport

    async def set(
        self, target: str, rules: NetworkRules = (), *, limits: NetworkLimits | None = None
    ) -> tuple[str, ...]:
        """Replace the default of a target, and return what its rules can leak, in words.

        Raises NotFound when the catalogue has no such name, InvalidArgument for rules that make no sense, with what to
        write instead.
        """
        if not rules and limits is None:
            raise InvalidArgument("network default: give rules, limits or both (remove takes it away)")
        policy: dict[str, Any] = {"rules": rules_to_json(rules)}
        if limits is not None:
            policy["limits"] = limits.to_json()
        return await self._put(target, policy)

    async def remove(self, target: str) -> None:
        """Take the default of a target away; one that has none is no error."""
        await self._put(target, None)

    async def list(self) -> _Defaults:
        """All defaults, by target."""
        o = await self._t.unary("NetworkDefaultService/ListNetworkDefaults", {}, safe=True)
        return [NetworkDefault.from_json(d) for d in codec.messages(o, "defaults")]

    async def _put(self, target: str, policy: dict[str, Any] | None) -> tuple[str, ...]:
        body = {"default": without_defaults(target=target, policy=policy)}
        o = await self._t.unary("NetworkDefaultService/SetNetworkDefault", body, safe=True)
        return codec.texts(o, "warnings")
